//! Reads `v0.rs` into plain data: its sections, constants, structs and function types in order.

use anyhow::{Context, Result, bail, ensure};
use quote::ToTokens;
use std::path::Path;
use syn::spanned::Spanned;

/// The definition of the ABI, in the order of the file.
pub struct Source {
    /// Rules for the whole ABI: the text below the heading `What holds everywhere`.
    pub everywhere: Vec<String>,
    pub items: Vec<Item>,
}

/// One item of v0.rs.
pub enum Item {
    /// A banner comment.
    Section(String),
    Constant(Constant),
    /// `pub type Status = i32`.
    Alias(Alias),
    /// A function pointer type.
    Function(Alias),
    Struct(Struct),
}

pub struct Constant {
    pub name: String,
    /// The Rust type.
    pub ty: String,
    pub value: String,
    pub doc: Vec<String>,
}

pub struct Alias {
    pub name: String,
    pub ty: syn::Type,
    pub doc: Vec<String>,
}

pub struct Struct {
    pub name: String,
    pub doc: Vec<String>,
    pub fields: Vec<Field>,
}

pub struct Field {
    pub name: String,
    pub ty: syn::Type,
    pub doc: Vec<String>,
}

impl Field {
    /// Returns the Rust type.
    pub fn rust_type(&self) -> String {
        self.ty.to_token_stream().to_string()
    }
}

impl Struct {
    /// Returns whether it starts with its size.
    pub fn growable(&self) -> bool {
        self.fields.first().is_some_and(|field| field.name == "struct_size")
    }

    /// Returns whether its content is private to the plugin.
    pub fn opaque(&self) -> bool {
        self.fields.iter().all(|field| field.name == "_private")
    }

    /// Returns the position of the field in the line "Required up to `field`."
    pub fn required_up_to(&self) -> Result<usize> {
        let doc = self.doc.join(" ");
        let name = between(&doc, "Required up to `", "`")
            .with_context(|| format!("{}: no line `Required up to `field`.`", self.name))?;
        self.fields
            .iter()
            .position(|field| field.name == name)
            .with_context(|| format!("{}: required up to `{name}`, which is no field", self.name))
    }
}

/// Returns the text between two marks.
pub fn between<'a>(text: &'a str, before: &str, after: &str) -> Option<&'a str> {
    let start = text.find(before)? + before.len();
    let len = text[start..].find(after)?;
    Some(&text[start..start + len])
}

/// Returns a type's name in C: `DeviceInfo` is `devbay_device_info`; `DType` is `devbay_dtype`.
pub fn c_name(rust: &str) -> String {
    let mut name = String::from("devbay_");
    let mut previous_lower = false;
    for letter in rust.chars() {
        if letter.is_uppercase() && previous_lower {
            name.push('_');
        }
        previous_lower = letter.is_lowercase();
        name.extend(letter.to_lowercase());
    }
    name
}

/// Reads the file.
pub fn read(path: &Path) -> Result<Source> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let file = syn::parse_file(&text).with_context(|| path.display().to_string())?;
    let mut sections = banners(&text);
    let mut items = Vec::new();
    for item in &file.items {
        let line = item.span().start().line;
        while sections.first().is_some_and(|(at, _)| *at < line) {
            items.push(Item::Section(sections.remove(0).1));
        }
        match item {
            syn::Item::Use(_) => {}
            syn::Item::Const(item) => items.push(Item::Constant(Constant {
                name: item.ident.to_string(),
                ty: item.ty.to_token_stream().to_string(),
                value: item.expr.to_token_stream().to_string().replace('_', ""),
                doc: doc_of(&item.attrs),
            })),
            syn::Item::Type(item) => {
                let alias =
                    Alias { name: item.ident.to_string(), ty: (*item.ty).clone(), doc: doc_of(&item.attrs) };
                items.push(match &alias.ty {
                    syn::Type::BareFn(_) => Item::Function(alias),
                    _ => Item::Alias(alias),
                });
            }
            syn::Item::Struct(item) => items.push(Item::Struct(read_struct(item)?)),
            other => bail!("line {line}: not an ABI definition: {}", other.to_token_stream()),
        }
    }
    ensure!(!items.is_empty(), "{} is empty", path.display());
    let words = doc_of(&file.attrs);
    let heading = words.iter().position(|line| line == "# Rules that hold everywhere");
    let heading =
        heading.with_context(|| format!("{}: no heading `Rules that hold everywhere`", path.display()))?;
    let everywhere = words[heading + 1..].iter().skip_while(|line| line.is_empty()).cloned().collect();
    Ok(Source { everywhere, items })
}

fn read_struct(item: &syn::ItemStruct) -> Result<Struct> {
    let syn::Fields::Named(fields) = &item.fields else {
        bail!("{}: an ABI struct has named fields", item.ident);
    };
    Ok(Struct {
        name: item.ident.to_string(),
        doc: doc_of(&item.attrs),
        fields: fields
            .named
            .iter()
            .map(|field| Field {
                name: field.ident.as_ref().map(ToString::to_string).unwrap_or_default(),
                ty: field.ty.clone(),
                doc: doc_of(&field.attrs),
            })
            .collect(),
    })
}

/// Returns the titles between two lines of dashes, with their line numbers from 1.
fn banners(text: &str) -> Vec<(usize, String)> {
    let lines: Vec<&str> = text.lines().collect();
    let dashes = |line: &str| line.starts_with("// ----");
    (1..lines.len().saturating_sub(1))
        .filter(|&i| dashes(lines[i - 1]) && dashes(lines[i + 1]))
        .map(|i| (i + 1, lines[i].trim_start_matches("// ").to_owned()))
        .collect()
}

/// Returns the doc comment, line by line.
fn doc_of(attrs: &[syn::Attribute]) -> Vec<String> {
    let text = |attr: &syn::Attribute| match &attr.meta {
        syn::Meta::NameValue(syn::MetaNameValue {
            path,
            value: syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(text), .. }),
            ..
        }) if path.is_ident("doc") => Some(text.value().trim().to_owned()),
        _ => None,
    };
    attrs.iter().filter_map(text).collect()
}
