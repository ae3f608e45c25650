// Numbers, sizes and times as people read them; always in the same number of places.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const precise = new Intl.NumberFormat("en", { maximumFractionDigits: 1 });

export function count(value) {
  return value === null || value === undefined ? "–" : whole.format(value);
}

export function rate(value) {
  return value === null || value === undefined ? "–" : (value < 10 ? precise : whole).format(value);
}

export function milliseconds(value) {
  if (value === null || value === undefined) {
    return "–";
  }
  return value >= 1000 ? `${precise.format(value / 1000)} s` : `${precise.format(value)} ms`;
}

export function bytes(value) {
  if (value === null || value === undefined) {
    return "–";
  }
  let size = value;
  for (const unit of ["B", "kB", "MB", "GB"]) {
    if (size < 1000 || unit === "GB") {
      return `${unit === "B" ? whole.format(size) : precise.format(size)} ${unit}`;
    }
    size /= 1000;
  }
  return "";
}

const two = (number) => String(number).padStart(2, "0");

// 14:03:09.120 today, with the date before it on any other day.
export function time(at) {
  if (!at) {
    return "–";
  }
  const moment = new Date(at);
  const clock =
    `${two(moment.getHours())}:${two(moment.getMinutes())}:${two(moment.getSeconds())}` +
    `.${String(moment.getMilliseconds()).padStart(3, "0")}`;
  if (moment.toDateString() === new Date().toDateString()) {
    return clock;
  }
  return `${moment.getFullYear()}-${two(moment.getMonth() + 1)}-${two(moment.getDate())} ${clock}`;
}

export function ago(at, now = Date.now()) {
  if (!at) {
    return "–";
  }
  const seconds = Math.max(0, Math.round((now - at) / 1000));
  for (const [unit, size] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= size) {
      return `${Math.floor(seconds / size)} ${unit} ago`;
    }
  }
  return `${seconds} s ago`;
}

export function short(text, length = 12) {
  return text.length > length ? `${text.slice(0, length)}…` : text;
}

// JSON text with line breaks, without reading it: numbers of any size and doubled keys stay as they
// were stored.
export function indented(text) {
  let depth = 0;
  let isInText = false;
  let result = "";
  const lineBreak = () => `\n${"  ".repeat(Math.min(depth, 40))}`;
  for (let at = 0; at < text.length; at += 1) {
    const letter = text[at];
    if (isInText) {
      result += letter;
      if (letter === "\\") {
        at += 1;
        result += text[at] ?? "";
      } else if (letter === '"') {
        isInText = false;
      }
    } else if (letter === '"') {
      isInText = true;
      result += letter;
    } else if (letter === "{" || letter === "[") {
      const closing = letter === "{" ? "}" : "]";
      if (text[at + 1] === closing) {
        result += letter + closing;
        at += 1;
      } else {
        depth += 1;
        result += letter + lineBreak();
      }
    } else if (letter === "}" || letter === "]") {
      depth = Math.max(0, depth - 1);
      result += lineBreak() + letter;
    } else if (letter === ",") {
      result += letter + lineBreak();
    } else {
      result += letter === ":" ? ": " : letter;
    }
  }
  return result;
}
