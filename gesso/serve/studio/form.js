customElements.define("form-view", class extends HTMLElement {});
