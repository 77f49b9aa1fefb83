/** Pictures that arrive from outside: pasted, or dropped anywhere on the page. */

const LEFT_MS = 500;

/** Call `take(file)` with every picture that is pasted or dropped. */
export function receiveFiles(take) {
  let left;
  const dropping = (yes) => {
    clearTimeout(left);
    document.body.classList.toggle("dropping", yes);
  };
  document.addEventListener("paste", (event) => {
    const pasted = [...event.clipboardData.files].find((file) => file.type.startsWith("image/"));
    if (pasted) take(pasted);
  });
  document.addEventListener("dragover", (event) => {
    if (!event.dataTransfer.types.includes("Files")) return;
    event.preventDefault();
    dropping(true);
  });
  document.addEventListener("dragleave", (event) => {
    if (event.relatedTarget) return;
    clearTimeout(left); // WebKit never says where to: the page was left where no dragover follows
    left = setTimeout(() => dropping(false), LEFT_MS);
  });
  document.addEventListener("drop", (event) => {
    dropping(false);
    const [dropped] = event.dataTransfer.files;
    if (!dropped) return;
    event.preventDefault();
    take(dropped);
  });
}

/** Have a button choose a file, which `take` gets. */
export function chooseFile(button, field, take) {
  button.addEventListener("click", () => field.click());
  field.addEventListener("change", () => {
    const [file] = field.files;
    field.value = ""; // so that the same file can be chosen again
    if (file) take(file);
  });
}
