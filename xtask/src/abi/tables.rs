//! The ABI's layouts and functions' rules as a Rust table, generated from [`super::source`].

use super::source::{Item, Source, Struct, between, c_name};
use anyhow::{Context, Result, bail, ensure};
use std::fmt::Write;
use std::process::Command;

/// Returns the content of `tables.rs`.
pub fn generate(source: &Source) -> Result<String> {
    rustfmt(&tables(source)?)
}

fn tables(source: &Source) -> Result<String> {
    let structs: Vec<&Struct> = source
        .items
        .iter()
        .filter_map(|item| match item {
            Item::Struct(item) => Some(item),
            _ => None,
        })
        .collect();
    let mut out = String::from(
        "//! Layouts of the ABI's structs and rules of its functions, as data. Generated from `v0.rs` by\n\
         //! `cargo xtask header`; do not edit.\n\n\
         use super::growable::Growable;\nuse super::v0::*;\nuse core::ffi::*;\nuse core::mem::offset_of;\n\n\
         /// Layout of one struct on the architecture that this was compiled for.\n\
         #[derive(Clone, Copy, Debug)]\n\
         pub struct StructLayout {\n\
             /// Name in Rust.\n    pub name: &'static str,\n\
             /// Name in C.\n    pub c_name: &'static str,\n\
             /// Size in bytes.\n    pub size: usize,\n\
             /// Alignment in bytes.\n    pub align: usize,\n\
             /// True if it starts with `struct_size` and may gain fields.\n    pub growable: bool,\n\
             /// Fields in order.\n    pub fields: &'static [FieldLayout],\n}\n\n\
         /// Layout of one field.\n\
         #[derive(Clone, Copy, Debug)]\n\
         pub struct FieldLayout {\n\
             /// Name, the same in Rust and C.\n    pub name: &'static str,\n\
             /// Offset in bytes.\n    pub offset: usize,\n\
             /// Size in bytes.\n    pub size: usize,\n}\n\n\
         /// Threads that may call a function (B17).\n\
         #[derive(Clone, Copy, PartialEq, Eq, Debug)]\n\
         pub enum ThreadClass {\n\
             /// Any thread.\n    Any,\n\
             /// Any thread; the call never blocks.\n    AnyNeverBlocks,\n\
             /// Any thread; the call may block.\n    AnyMayBlock,\n\
             /// One call at a time per stream.\n    PerStream,\n\
             /// One call at a time, with no other call of the instance running.\n    Control,\n}\n\n\
         /// The rules of one function of `PluginTable`, from its documentation (B17).\n\
         #[derive(Clone, Copy, Debug)]\n\
         pub struct FunctionRule {\n\
             /// Name of the function.\n    pub name: &'static str,\n\
             /// Threads that may call it.\n    pub threads: ThreadClass,\n\
             /// True if every plugin of its kind must have it (B7).\n    pub required: bool,\n\
             /// Minor version in which it appeared.\n    pub since_minor: u32,\n}\n\n",
    );

    writeln!(
        out,
        "/// Every struct of the ABI, in the order of the header.\npub const LAYOUTS: &[StructLayout] = &["
    )?;
    for item in structs.iter().filter(|item| !item.opaque()) {
        writeln!(
            out,
            "StructLayout {{ name: \"{0}\", c_name: \"{1}\", size: size_of::<{0}>(), align: align_of::<{0}>(), \
             growable: {2}, fields: &[",
            item.name,
            c_name(&item.name),
            item.growable()
        )?;
        for field in &item.fields {
            writeln!(
                out,
                "FieldLayout {{ name: \"{1}\", offset: offset_of!({0}, {1}), size: size_of::<{2}>() }},",
                item.name,
                field.name,
                field.rust_type()
            )?;
        }
        writeln!(out, "] }},")?;
    }
    writeln!(out, "];\n")?;

    for item in structs.iter().filter(|item| item.growable()) {
        let ends: Vec<String> = item
            .fields
            .iter()
            .map(|field| {
                format!("offset_of!({}, {}) + size_of::<{}>()", item.name, field.name, field.rust_type())
            })
            .collect();
        let required = item.required_up_to()?;
        writeln!(
            out,
            "// SAFETY: `repr(C)` with `struct_size: u32` first, made of integers, pointers and optional\n\
             // functions; ends and required size come from the fields in order.\n\
             unsafe impl Growable for {0} {{\n\
             const NAME: &'static str = \"{0}\";\n\
             const REQUIRED_SIZE: usize = {1};\n\
             const FIELD_ENDS: &'static [usize] = &[{2}];\n}}\n",
            item.name,
            ends[required],
            ends.join(", ")
        )?;
    }

    writeln!(
        out,
        "// The first half of what `Growable` promises, as the compiler sees it.\n#[cfg(feature = \"bytemuck\")]\n\
         const _: () = {{\nconst fn all_zeroes_is_a_value<T: bytemuck::Zeroable>() {{}}"
    )?;
    for item in structs.iter().filter(|item| item.growable()) {
        writeln!(out, "all_zeroes_is_a_value::<{}>();", item.name)?;
    }
    writeln!(out, "}};\n")?;

    for (owner, what) in [
        ("PLUGIN", "a plugin"),
        ("DEVICE", "a device"),
        ("SPACE", "a memory space"),
        ("KERNEL", "a kernel"),
        ("EXECUTABLE", "a program"),
    ] {
        let prefix = format!("DEVBAY_{owner}_");
        let flags: Vec<&str> = source
            .items
            .iter()
            .filter_map(|item| match item {
                Item::Constant(constant) if constant.ty == "u64" => Some(constant.name.as_str()),
                _ => None,
            })
            .filter(|name| name.starts_with(&prefix))
            .collect();
        ensure!(!flags.is_empty(), "v0.rs has no flags {prefix}*");
        writeln!(
            out,
            "/// The flags of {what} that this version of the ABI defines.\npub const {owner}_FLAGS: u64 = {};\n",
            flags.join(" | ")
        )?;
    }

    let table = structs.iter().find(|item| item.name == "PluginTable").context("v0.rs has no PluginTable")?;
    writeln!(
        out,
        "/// The rules of the table's functions, in its order (B17).\npub const FUNCTIONS: &[FunctionRule] = &["
    )?;
    for field in &table.fields {
        if !field.rust_type().starts_with("Option") {
            continue;
        }
        let (name, doc) = (&field.name, field.doc.join(" "));
        for section in ["Owns:", "Threads:", "Order:", "Errors:", "Since: 0."] {
            ensure!(doc.contains(section), "PluginTable::{name}: its comment has no `{section}`");
        }
        let threads = match between(&doc, "Threads: ", ".").unwrap_or_default() {
            "control" => "Control",
            "any" => "Any",
            text if text.starts_with("any, never blocks") => "AnyNeverBlocks",
            text if text.starts_with("any, may block") => "AnyMayBlock",
            text if text.starts_with("one at a time per") => "PerStream",
            text => bail!("PluginTable::{name}: unknown threading class `{text}`"),
        };
        let since = between(&format!("{doc} "), "Since: 0.", " ")
            .map(|text| text.trim_end_matches(['.', ',']).to_owned())
            .unwrap_or_default();
        let since: u32 = since.parse().with_context(|| format!("PluginTable::{name}: Since: 0.{since}"))?;
        writeln!(
            out,
            "FunctionRule {{ name: \"{name}\", threads: ThreadClass::{threads}, required: {}, since_minor: {since} }},",
            doc.ends_with("required.")
        )?;
    }
    writeln!(out, "];")?;
    Ok(out)
}

fn rustfmt(source: &str) -> Result<String> {
    use std::io::Write as _;
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024"])
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .context("rustfmt")?;
    child.stdin.take().context("rustfmt's standard input")?.write_all(source.as_bytes())?;
    let output = child.wait_with_output()?;
    ensure!(output.status.success(), "rustfmt refused the generated code");
    Ok(String::from_utf8(output.stdout)?)
}
