/** The server's API key, kept in this tab; where nothing may be stored, until it is loaded again. */

const NAME = "scanline-key";

/** Asks a person for the key: once, however many calls wait for it. */
export class ApiKey {
  asking = null;
  declined = false;
  given = null;

  /** The key to send, or null. */
  get value() {
    try {
      return this.given ?? sessionStorage.getItem(NAME);
    } catch { /* storage is forbidden */
      return null;
    }
  }

  set value(key) {
    this.given = key;
    try {
      sessionStorage.setItem(NAME, key);
    } catch { /* then only this page remembers */ }
  }

  /**
   * Ask for another key than the one refused; false where the person would rather not, which
   * they are asked no second time until they act again.
   */
  async ask(refused) {
    if (this.value !== refused) return true; // another call has asked meanwhile
    if (this.declined) return false;
    this.asking ??= this.#show(refused !== null).finally(() => { this.asking = null; });
    return this.asking;
  }

  #show(wrong) {
    const dialog = document.getElementById("key-dialog");
    const field = document.getElementById("key");
    document.getElementById("key-wrong").hidden = !wrong;
    field.value = "";
    return new Promise((resolve) => {
      dialog.returnValue = "";
      dialog.addEventListener("close", () => {
        const given = dialog.returnValue === "ok" && field.value.trim();
        if (given) this.value = given;
        this.declined = !given;
        resolve(Boolean(given));
      }, { once: true });
      dialog.showModal();
    });
  }
}
