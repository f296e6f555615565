customElements.define("sudoku-view", class extends HTMLElement {});
