//! Shaders as templates: the files in `src/wgsl/`, which are WGSL but for what a kernel fills in.
//!
//! - `$name` is replaced by a value, and so is `${name}` where a letter, a digit or `_` follows.
//! - `#if name`, `#else` and `#end` keep the lines of one of two cases.
//! - `#for i in n` and `#end` repeat lines with `$i` from 0 on; `n` is a name, or a number.
//!
//! Lines that are comments stay in the file. Those at its top say what the shader does, and for the test what it is over:
//!
//! ```text
//! // buffers: x, ids: u32        `f32` where it says nothing
//! // params: n, scale: f32       the fields of `p`, `u32` where it says nothing
//! // with: fn f() {}             other declarations
//! // over: i                     arguments, if the text is statements and no module: `u32` where it says nothing
//! // $name: value, $name: flag   values; `flag` for both, one after the other
//! ```
//!
//! [`wgsl!`](crate::template::wgsl) compiles only if what it is given is what the template names. The test fills every
//! file and lets naga read it, so that a broken one is found without a device. What is short, or is made from lists as
//! long as a shape (`kernels/walk.rs`), stays in Rust.

use std::fmt::Write;

/// Value that is filled in.
#[derive(Clone, Copy)]
pub enum Value<'a> {
    /// A text as it is.
    Text(&'a str),
    /// A number, or how often lines are repeated.
    Number(u64),
    /// True if lines are kept.
    Flag(bool),
}

/// Values that can be filled in.
pub trait Fill {
    /// It as a value.
    fn value(&self) -> Value<'_>;
}

impl<T: Fill + ?Sized> Fill for &T {
    fn value(&self) -> Value<'_> {
        T::value(self)
    }
}

impl Fill for str {
    fn value(&self) -> Value<'_> {
        Value::Text(self)
    }
}

impl Fill for String {
    fn value(&self) -> Value<'_> {
        Value::Text(self)
    }
}

impl Fill for bool {
    fn value(&self) -> Value<'_> {
        Value::Flag(*self)
    }
}

macro_rules! numbers {
    ($($ty:ty)*) => {
        $(impl Fill for $ty {
            fn value(&self) -> Value<'_> {
                Value::Number(*self as u64)
            }
        })*
    };
}

numbers!(u32 u64 i64 usize);

/// Fills a file of `src/wgsl/`: `wgsl!("FILE", name = value, flag)`; a name alone is a variable's.
macro_rules! wgsl {
    (@value $name:ident) => { $crate::template::Fill::value(&$name) };
    (@value $name:ident $value:expr) => { $crate::template::Fill::value(&$value) };
    ($file:literal $(, $name:ident $(= $value:expr)?)* $(,)?) => {{
        const TEXT: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/src/wgsl/", $file));
        const NAMES: &[&str] = &[$(stringify!($name)),*];
        const { assert!($crate::template::takes(TEXT, NAMES), "names that are not those of the template") };
        $crate::template::fill(TEXT, &[$((stringify!($name), $crate::template::wgsl!(@value $name $($value)?))),*])
    }};
}
pub(crate) use wgsl;

/// A template with its values filled in.
pub fn fill(template: &str, values: &[(&str, Value<'_>)]) -> String {
    let mut text = String::with_capacity(2 * template.len());
    let ended = block(&mut text, &mut template.lines(), &mut values.to_vec(), true);
    debug_assert_eq!(ended, "", "what begins has an end, and nothing else");
    text
}

type Values<'a, 'b> = Vec<(&'a str, Value<'b>)>;

/// Fills lines up to the `#else` or `#end` that they end with, and says which; without `keeps` they are passed over.
fn block<'a>(
    text: &mut String,
    lines: &mut std::str::Lines<'a>,
    values: &mut Values<'a, '_>,
    keeps: bool,
) -> &'a str {
    while let Some(line) = lines.next().map(str::trim_start) {
        if let Some(name) = line.strip_prefix("#if ") {
            let Value::Flag(holds) = find(values, name) else { unreachable!("`{name}` is no flag") };
            let mut ended = block(text, lines, values, keeps && holds);
            if ended == "#else" {
                ended = block(text, lines, values, keeps && !holds);
            }
            debug_assert_eq!(ended, "#end", "of `#if {name}`");
        } else if let Some((name, n)) = line.strip_prefix("#for ").and_then(|rest| rest.split_once(" in ")) {
            let n = n.parse().unwrap_or_else(|_| match find(values, n) {
                Value::Number(n) => n,
                _ => unreachable!("`{n}` is no number"),
            });
            let begin = lines.clone();
            for i in 0..n.max(1) {
                *lines = begin.clone();
                values.push((name, Value::Number(i)));
                let ended = block(text, lines, values, keeps && i < n);
                debug_assert_eq!(ended, "#end", "of `#for {name}`");
                values.pop();
            }
        } else if line.starts_with('#') {
            return line;
        } else if keeps && !line.starts_with("//") {
            fill_line(text, line, values);
        }
    }
    ""
}

fn fill_line(text: &mut String, line: &str, values: &Values<'_, '_>) {
    let mut parts = line.split('$');
    text.push_str(parts.next().unwrap_or_default());
    for part in parts {
        let (name, rest) = match part.strip_prefix('{').and_then(|part| part.split_once('}')) {
            Some(parts) => parts,
            None => part.split_at(part.find(|c: char| !is_of_name(c)).unwrap_or(part.len())),
        };
        match find(values, name) {
            Value::Text(value) => text.push_str(value),
            Value::Number(value) => write!(text, "{value}").expect("memory"),
            Value::Flag(_) => unreachable!("`{name}` is no text"),
        }
        text.push_str(rest);
    }
    text.push('\n');
}

fn find<'b>(values: &Values<'_, 'b>, name: &str) -> Value<'b> {
    match values.iter().find(|(known, _)| *known == name) {
        Some((_, value)) => *value,
        None => unreachable!("no value for `{name}`"),
    }
}

/// Names are of lower-case letters, digits and `_`.
const fn is_of_name(c: char) -> bool {
    matches!(c, 'a'..='z' | '0'..='9' | '_')
}

/// Returns whether a template names each of these, and nothing else.
pub const fn takes(template: &str, names: &[&str]) -> bool {
    let mut i = 0;
    while i < names.len() {
        if !mentions(template.as_bytes(), names[i].as_bytes(), &[]) {
            return false;
        }
        i += 1;
    }
    !mentions(template.as_bytes(), b"", names)
}

/// Returns whether a template has this name; or with none, one that is neither among `known` nor what a `#for` counts.
const fn mentions(text: &[u8], name: &[u8], known: &[&str]) -> bool {
    let (mut at, mut is_start) = (0, true);
    while at < text.len() {
        if is_start && starts_with(text, at, b"//") {
            while at < text.len() && text[at] != b'\n' {
                at += 1;
            }
            continue;
        }
        let skipped = match text[at] {
            b'$' if starts_with(text, at, b"${") => 2,
            b'$' => 1,
            b'#' if starts_with(text, at, b"#if ") => 4,
            // The name that it declares is one letter.
            b'#' if starts_with(text, at, b"#for ") => 10,
            _ => 0,
        };
        is_start = text[at] == b'\n' || is_start && text[at] == b' ';
        at += 1;
        if skipped == 0 {
            continue;
        }
        let begin = at - 1 + skipped;
        at = begin;
        while at < text.len() && is_of_name(text[at] as char) {
            at += 1;
        }
        let found = text.split_at(begin).1.split_at(at - begin).0;
        let is_wanted = match name {
            [] => {
                !found.is_empty()
                    && !found[0].is_ascii_digit()
                    && !is_known(found, known)
                    && !is_counted(text, found)
            }
            name => found.len() == name.len() && starts_with(found, 0, name),
        };
        if is_wanted {
            return true;
        }
    }
    false
}

const fn is_known(name: &[u8], known: &[&str]) -> bool {
    let mut i = 0;
    while i < known.len() {
        if known[i].len() == name.len() && starts_with(known[i].as_bytes(), 0, name) {
            return true;
        }
        i += 1;
    }
    false
}

/// Returns whether a `#for` of the template counts by this letter.
const fn is_counted(text: &[u8], name: &[u8]) -> bool {
    let mut at = 0;
    while at + 5 < text.len() {
        if starts_with(text, at, b"#for ") && name.len() == 1 && text[at + 5] == name[0] {
            return true;
        }
        at += 1;
    }
    false
}

const fn starts_with(text: &[u8], at: usize, word: &[u8]) -> bool {
    let mut i = 0;
    while i < word.len() {
        if at + i >= text.len() || text[at + i] != word[i] {
            return false;
        }
        i += 1;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::math;
    use std::path::{Path, PathBuf};

    #[test]
    fn names_are_filled_in() {
        let template = "// $a: 1\nlet x${a}_$b = $b;\n#if c\nyes\n#else\nno\n#end\n#for i in b\n$i,\n#end\n";
        let filled =
            |b, c| fill(template, &[("a", Value::Text("z")), ("b", Value::Number(b)), ("c", Value::Flag(c))]);
        assert_eq!(filled(2, true), "let xz_2 = 2;\nyes\n0,\n1,\n");
        assert_eq!(filled(0, false), "let xz_0 = 0;\nno\n");
    }

    #[test]
    fn a_template_is_given_what_it_names() {
        let template =
            "// $d: 1\n$a\n  // $d\n#if b\n#for i in c\n$i $a\n#end\n#for j in 4\n$j\n#end\n#end\n";
        assert!(takes(template, &["a", "b", "c"]));
        assert!(!takes(template, &["a", "b"]) && !takes(template, &["a", "b", "c", "d"]));
    }

    fn files(folder: &Path) -> Vec<PathBuf> {
        let entries =
            std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
        entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
    }

    /// Names and types, where one without a type has the usual one.
    fn typed<'a>(list: &'a str, usual: &'a str) -> impl Iterator<Item = (&'a str, &'a str)> {
        list.split(", ").map(move |one| one.split_once(": ").unwrap_or((one, usual)))
    }

    /// A template as its head says, with its flags as the bits of `flags` are; None beyond them.
    fn sample(template: &str, flags: u32) -> Option<String> {
        let (mut before, mut over, mut values, mut n_flags) = (String::new(), None, Vec::new(), 0);
        for line in
            template.lines().map_while(|line| line.strip_prefix("// ").or((line == "//").then_some("")))
        {
            if let Some(list) = line.strip_prefix("buffers: ") {
                for (i, (name, ty)) in typed(list, "f32").enumerate() {
                    let binding = i + 1;
                    before += &format!(
                        "@group(0) @binding({binding}) var<storage, read_write> {name}: array<{ty}>;\n"
                    );
                }
            } else if let Some(list) = line.strip_prefix("params: ") {
                let fields: Vec<_> = typed(list, "u32").map(|(name, ty)| format!("{name}: {ty}")).collect();
                let fields = fields.join(", ");
                before +=
                    &format!("struct Params {{ {fields} }}\n@group(0) @binding(0) var<uniform> p: Params;\n");
            } else if let Some(declarations) = line.strip_prefix("with: ") {
                before += declarations;
            } else if let Some(list) = line.strip_prefix("over: ") {
                let arguments: Vec<_> =
                    typed(list, "u32").map(|(name, ty)| format!("{name}: {ty}")).collect();
                over = Some(arguments.join(", "));
            } else if let Some(list) = line.strip_prefix('$') {
                for (name, value) in list.split(", $").filter_map(|one| one.split_once(':')) {
                    let value = match value.trim() {
                        "flag" => {
                            n_flags += 1;
                            Value::Flag(flags >> (n_flags - 1) & 1 == 1)
                        }
                        value @ ("true" | "false") => Value::Flag(value == "true"),
                        value => value.parse().map_or(Value::Text(value), Value::Number),
                    };
                    values.push((name, value));
                }
            }
        }
        let names: Vec<&str> = values.iter().map(|(name, _)| *name).collect();
        assert!(takes(template, &names), "{names:?} are not those of\n{template}");
        let mut text = fill(template, &values);
        if let Some(over) = over {
            text = format!("fn each({over}) {{\n{text}\n}}\n");
        }
        // The prelude itself has the functions that it calls.
        let prelude = if text.contains("fn exp_f(") || text.contains("fn rem_") {
            String::new()
        } else {
            math::called_by(&text)
        };
        text = format!("{before}{prelude}\n{text}");
        if text.contains("f16") {
            text.insert_str(0, "enable f16;\n");
        }
        (flags >> n_flags == 0).then_some(text)
    }

    #[test]
    fn every_template_is_used_and_is_wgsl() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let templates = files(&root.join("wgsl"));
        let is_rust = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "rs");
        let sources = files(&root)
            .into_iter()
            .filter(is_rust)
            .map(|path| std::fs::read_to_string(path).expect("a source"));
        let sources: String = sources.collect();
        for file in &templates {
            let name = file.strip_prefix(root.join("wgsl")).expect("a template's path").display();
            assert!(sources.contains(&format!("\"{name}\"")), "{name} is used");
            let template = std::fs::read_to_string(file).expect("a template");
            for flags in 0.. {
                let Some(text) = sample(&template, flags) else { break };
                let read = naga::front::wgsl::parse_str(&text).map_err(|e| e.emit_to_string(&text));
                let module = read.unwrap_or_else(|e| panic!("{name}: {e}\n{text}"));
                let all = naga::valid::Capabilities::all();
                let checked =
                    naga::valid::Validator::new(naga::valid::ValidationFlags::all(), all).validate(&module);
                if let Err(e) = checked {
                    panic!("{name}: {}\n{text}", e.emit_to_string(&text));
                }
            }
        }
    }
}
