// A button on each block of code that copies it; without JavaScript there is none, and nothing is missing.
for (const block of document.querySelectorAll("div.highlight")) {
  const code = block.querySelector("pre");
  if (!code || !navigator.clipboard) continue; // pages opened over plain HTTP may not copy
  const button = document.createElement("button");
  button.type = "button";
  button.className = "copy";
  button.textContent = "Copy";
  button.setAttribute("aria-label", "Copy this block");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(code.textContent.replace(/\n$/, ""));
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    setTimeout(() => (button.textContent = "Copy"), 1500);
  });
  block.append(button);
}
