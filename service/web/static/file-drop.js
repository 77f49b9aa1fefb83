/** Image files that are pasted, dropped on the page, or chosen in a file dialog. */

const LEAVE_MS = 500;

/** Call `onFile` with each image that is pasted, and each file that is dropped. */
export function listenForFiles(onFile) {
  let leaveTimer;
  const showDropTarget = (shown) => {
    clearTimeout(leaveTimer);
    document.body.classList.toggle("dropping", shown);
  };
  document.addEventListener("paste", (event) => {
    const image = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
    if (image) onFile(image);
  });
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    showDropTarget(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget) return;
    clearTimeout(leaveTimer); // WebKit never sets relatedTarget, so wait for another dragover
    leaveTimer = setTimeout(() => showDropTarget(false), LEAVE_MS);
  });
  document.addEventListener("drop", (event) => {
    showDropTarget(false);
    const [dropped] = event.dataTransfer.files;
    if (!dropped) return;
    event.preventDefault();
    onFile(dropped);
  });
}

/** Let a button open the dialog of a file field; call `onFile` with the chosen file. */
export function connectFileButton(button, field, onFile) {
  button.addEventListener("click", () => field.click());
  field.addEventListener("change", () => {
    const [file] = field.files;
    field.value = ""; // so that the same file can be chosen again
    if (file) onFile(file);
  });
}
