//! Formulas as OpenCL C: a header for plugins in C (`plugins/opencl/src/formulas.h`).
//!
//! `cargo run --example formulas_h > plugins/opencl/src/formulas.h` writes it, and a test compares.

use crate::formula::{self, Emit, Formula, Function};
use crate::row::Takes;
use std::convert::Infallible;
use std::fmt::Write as _;

/// Maximum line length of the header.
const WIDTH: usize = 100;

const HEAD: &str =
    "/* formulas.h - elementwise ops as formulas: their kernels, and those of several fused, are written of
 * them (op_map.c). Generated from ops/src/table.rs by `cargo run --example formulas_h`; do not edit.
 *
 * X(op, domain, version of the op, operands, arithmetic operations, formula, attributes with their defaults).
 * A formula is OpenCL C over the operands a and b and the attributes k0 and k1. NaN passes wherever
 * ONNX's reference lets it pass.
 */
#ifndef FORMULAS_H
#define FORMULAS_H

";

/// Returns the header.
pub fn header() -> String {
    let of_floats = |formula: &&Formula| {
        !formula.gives_truth() && matches!(formula.form.takes, Takes::Floats | Takes::Signed | Takes::Numbers)
    };
    let is_alone = |formula: &&Formula| {
        let row = formula.row;
        row.forms[1].is_none() && formula.form.absent.is_empty()
    };
    let all = || formula::all().iter().filter(of_floats);
    let mut text = HEAD.to_owned();
    list(&mut text, "FORMULAS", all().filter(is_alone));
    text.push_str("/* Those that are fused alone, or whose kernel reads its attributes itself. */\n");
    list(&mut text, "FUSED_FORMULAS", all().filter(|formula| formula.row.is_fused && !is_alone(formula)));
    text.push_str("#endif\n");
    text
}

fn list<'a>(text: &mut String, name: &str, formulas: impl Iterator<Item = &'a Formula>) {
    _ = write!(text, "#define {name}(X)");
    for formula in formulas {
        let mut words = vec![
            formula.name().to_owned(),
            format!("\"{}\"", formula.row.domain),
            formula.row.version.to_string(),
            formula.n_operands.to_string(),
            formula.form.flops.to_string(),
            format!("\"{}\"", written(formula)),
        ];
        for k in 0..2 {
            let param = formula.params.get(k);
            words.push(param.map_or("NULL".to_owned(), |param| format!("\"{}\"", param.name)));
            let default = param.map_or(0.0, |param| param.default);
            words.push(if default.is_finite() && default != 0.0 {
                number(default.into())
            } else {
                "0".to_owned()
            });
        }
        text.push_str(" \\\n");
        wrap(text, &words);
    }
    text.push_str("\n\n");
}

/// Appends one entry, on as many lines as it needs.
fn wrap(text: &mut String, words: &[String]) {
    let mut line = "    X(".to_owned();
    for (i, word) in words.iter().enumerate() {
        let end = if i + 1 == words.len() { ")" } else { "," };
        let space = if line.ends_with(['(', ' ']) { "" } else { " " };
        if line.len() + word.len() + 4 > WIDTH {
            text.push_str(&line);
            text.push_str(" \\\n");
            line = format!("            {word}{end}");
        } else {
            _ = write!(line, "{space}{word}{end}");
        }
    }
    text.push_str(&line);
}

fn written(formula: &Formula) -> String {
    let Ok(text) = formula.expr.emit(&mut Writer);
    match text.strip_prefix('(').and_then(|inner| inner.strip_suffix(')')) {
        Some(inner) if is_balanced(inner) => inner.to_owned(),
        _ => text,
    }
}

/// Returns whether no parenthesis closes one from before the text.
fn is_balanced(text: &str) -> bool {
    let mut depth = 0i32;
    text.chars().all(|c| {
        depth += i32::from(c == '(') - i32::from(c == ')');
        depth >= 0
    })
}

fn number(number: f64) -> String {
    format!("{:?}f", number as f32)
}

struct Writer;

impl Emit for Writer {
    type Value = String;
    type Error = Infallible;

    fn operand(&mut self, idx: usize) -> Result<String, Infallible> {
        Ok(["a", "b"][idx].to_owned())
    }

    fn param(&mut self, idx: usize) -> Result<String, Infallible> {
        Ok(["k0", "k1"][idx].to_owned())
    }

    fn number(&mut self, value: f64) -> Result<String, Infallible> {
        Ok(number(value))
    }

    fn call(&mut self, function: Function, args: Vec<String>) -> Result<String, Infallible> {
        // OpenCL C's functions have other names, or mishandle NaN and infinities, so the plugin has its own.
        let name = match function {
            Function::Abs => "fabs",
            Function::Round => "rint",
            Function::Sign => "sign_of",
            Function::Erf => "erf_to_1",
            Function::Tanh => "tanh_to_1",
            Function::Rem => "fmod",
            _ => function.name(),
        };
        Ok(match (function, args.as_slice()) {
            (Function::Select, [condition, yes, no]) => format!("({condition} ? {yes} : {no})"),
            (Function::Neg, [a]) => format!("-{a}"),
            (Function::Not | Function::BitNot, [a]) => format!("{name}{a}"),
            (_, [a, b]) if function.is_infix() => format!("({a} {name} {b})"),
            _ => format!("{name}({})", args.join(", ")),
        })
    }
}
