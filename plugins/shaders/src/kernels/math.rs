//! The prelude of the formulas in WGSL, and elementary functions for other kernels.
//!
//! WGSL promises little of its own functions: an error that grows with the argument for `exp`, 2^-11 for `sin`, nothing
//! at NaN and infinity. These reduce the argument and evaluate a polynomial. `exp_f`, `log_f`, `tanh_f` and `erf_f` are
//! those of the CPU plugin's `math.rs`, where their fits and errors stand; the trigonometric ones have the coefficients
//! of Cephes' single-precision functions (Moshier, 1992).
//!
//! The functions are those of `wgsl/math/`. A name ends in the letter of its type ([`crate::formulas::Class::letter`]); [`functions`] brings what they call.

use crate::template::wgsl;
use std::sync::LazyLock;

/// Names and texts, in the order of the files.
static ALL: LazyLock<Vec<(String, String)>> = LazyLock::new(|| {
    let integer = |(letter, ty)| wgsl!("math/integer.wgsl", letter, type = ty);
    let integers = [("i", "i32"), ("u", "u32"), ("l", "i64"), ("m", "u64")].map(integer).concat();
    let text = format!("\n{}{integers}", wgsl!("math/float.wgsl"));
    let named = |function: &str| {
        let name = function.split('(').next().unwrap_or_default();
        (name.to_owned(), format!("fn {}", function.trim_end()))
    };
    text.split("\nfn ").skip(1).map(named).collect()
});

/// WGSL of the functions that are named, and of those that they call, each once.
pub fn functions<S: AsRef<str>>(names: &[S]) -> String {
    let mut wanted: Vec<&str> = Vec::new();
    let mut open: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    while let Some(name) = open.pop() {
        let Some((name, text)) = ALL.iter().find(|(known, _)| known == name) else { continue };
        if wanted.contains(&name.as_str()) {
            continue;
        }
        wanted.push(name);
        open.extend(
            ALL.iter().map(|(other, _)| other.as_str()).filter(|other| other != name && calls(text, other)),
        );
    }
    // In the files' order, so that equal sets give equal texts.
    let texts = ALL.iter().filter(|(name, _)| wanted.contains(&name.as_str())).map(|(_, text)| text.as_str());
    texts.collect::<Vec<_>>().join("\n")
}

/// Turns of loops of a call, at most, of functions whose text this is.
pub fn turns(functions: &str) -> u64 {
    // Those of a float's remainder: bits of exponents and fractions.
    if functions.contains("fn rem_f") { 300 } else { 0 }
}

/// WGSL of the functions that a text calls, and of those that they call.
pub fn called_by(text: &str) -> String {
    let names: Vec<&str> =
        ALL.iter().map(|(name, _)| name.as_str()).filter(|name| calls(text, name)).collect();
    functions(&names)
}

/// Returns whether there is a function of that name.
#[cfg(test)]
pub fn has(name: &str) -> bool {
    ALL.iter().any(|(known, _)| known == name)
}

fn calls(text: &str, name: &str) -> bool {
    text.match_indices(name).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        text[at + name.len()..].starts_with('(')
            && !before.is_some_and(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_bring_what_they_call_once() {
        let text = functions(&["tanh_f", "sigmoid_f"]);
        for name in ["tanh_f", "sigmoid_f", "exp_f", "copysign_f", "isnan_f", "inf_f"] {
            assert_eq!(text.matches(&format!("fn {name}(")).count(), 1, "{name}");
        }
        assert!(!text.contains("fn log_f("));
    }
}
