// Light, dark, or whatever the system says. The choice stays in this browser.

const KEY = "tidelog-theme";
const CHOICES = ["automatic", "light", "dark"];

function chosen() {
  try {
    const kept = localStorage.getItem(KEY);
    return CHOICES.includes(kept) ? kept : "automatic";
  } catch {
    return "automatic"; // storage may be forbidden
  }
}

export function applyTheme() {
  document.documentElement.dataset.theme = chosen();
}

export function bindThemeSwitch(button) {
  const show = () => {
    button.textContent = `Theme: ${chosen()}`;
  };
  button.addEventListener("click", () => {
    const next = CHOICES[(CHOICES.indexOf(chosen()) + 1) % CHOICES.length];
    try {
      localStorage.setItem(KEY, next);
    } catch {
      // then it lasts as long as the page
    }
    document.documentElement.dataset.theme = next;
    show();
  });
  applyTheme();
  show();
}
