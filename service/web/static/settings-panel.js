/** Settings of a form: below it on wide screens, in a sheet at the bottom of a phone. */

const narrow = matchMedia("(max-width: 52rem)");

/** Shows and hides a drawer. It stays open when the layout changes. */
export class SettingsPanel {
  /** @param {HTMLButtonElement} button @param {HTMLElement} drawer with the attribute `popover` */
  constructor(button, drawer) {
    Object.assign(this, { button, drawer });
    button.addEventListener("click", () => narrow.matches || this.showBelow(!this.open));
    narrow.addEventListener("change", () => this.updateLayout());
    this.updateLayout();
  }

  get open() {
    return this.drawer.matches(".open, :popover-open");
  }

  updateLayout() {
    const { open } = this;
    this.closeSheet();
    this.showBelow(open && !narrow.matches);
    if (narrow.matches) {
      this.button.setAttribute("popovertarget", this.drawer.id);
      this.button.removeAttribute("aria-expanded"); // the browser reports it for a popover
      this.drawer.togglePopover(open);
    } else {
      this.button.removeAttribute("popovertarget");
    }
  }

  showBelow(open) {
    this.drawer.classList.toggle("open", open);
    this.button.ariaExpanded = String(open);
  }

  /** Close the sheet of a phone, which covers the pictures. */
  closeSheet() {
    this.drawer.togglePopover(false);
  }
}
