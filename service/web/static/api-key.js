/** The API key: kept in session storage, or in memory if storage is forbidden. */

const STORAGE_KEY = "scanline-key";

/** Holds the key and asks the visitor for it, once even if several calls need it. */
export class ApiKey {
  pendingPrompt = null;
  declined = false;
  entered = null;

  /** The key to send, or null. */
  get value() {
    try {
      return this.entered ?? sessionStorage.getItem(STORAGE_KEY);
    } catch { /* storage is forbidden */
      return null;
    }
  }

  set value(key) {
    this.entered = key;
    try {
      sessionStorage.setItem(STORAGE_KEY, key);
    } catch { /* storage is forbidden: the key lasts until the page reloads */ }
  }

  /**
   * Ask for a key other than the refused one.
   *
   * @param {string | null} refused
   * @returns {Promise<boolean>} false if the visitor declined. They are not asked again until
   *   they click something.
   */
  async prompt(refused) {
    if (this.value !== refused) return true; // another call has already asked
    if (this.declined) return false;
    this.pendingPrompt ??= this.#showDialog(refused !== null)
      .finally(() => { this.pendingPrompt = null; });
    return this.pendingPrompt;
  }

  #showDialog(wrong) {
    const dialog = document.getElementById("key-dialog");
    const field = document.getElementById("key");
    document.getElementById("key-wrong").hidden = !wrong;
    field.value = "";
    return new Promise((resolve) => {
      dialog.returnValue = "";
      dialog.addEventListener("close", () => {
        const entered = dialog.returnValue === "ok" && field.value.trim();
        if (entered) this.value = entered;
        this.declined = !entered;
        resolve(Boolean(entered));
      }, { once: true });
      dialog.showModal();
    });
  }
}
