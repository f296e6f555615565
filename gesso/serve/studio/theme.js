// Light, dark or the system's theme. The choice is saved in this browser.

const NAME = "gesso.theme";
const NEXT = { auto: "light", light: "dark", dark: "auto" };
const SIGNS = { auto: "◐", light: "☀", dark: "☾" };

export function setUpTheme(button) {
  const apply = (theme) => {
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = SIGNS[theme];
    button.setAttribute("aria-label", `Theme: ${theme}`);
    button.title = `Theme: ${theme}`;
    return theme;
  };
  let theme = apply(localStorage.getItem(NAME) in NEXT ? localStorage.getItem(NAME) : "auto");
  button.addEventListener("click", () => {
    theme = apply(NEXT[theme]);
    localStorage.setItem(NAME, theme);
  });
}
