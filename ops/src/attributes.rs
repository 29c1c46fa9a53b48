//! The attributes of an op, as a line of names and types:
//!
//! | written | meaning |
//! |---|---|
//! | `axis:int` | required, one integer |
//! | `alpha:float=0.01` | optional, with this number as default |
//! | `perm:ints?` | optional; the default depends on the rest of the node |
//!
//! The types are those of [`AttributeType`]. A node may have attributes that are not in the line: those of former versions
//! of the op, and additions of exporters.

use std::fmt;

/// The type of an attribute.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttributeType {
    /// One integer.
    Int,
    /// One number.
    Float,
    /// Text.
    String,
    /// Integers.
    Ints,
    /// Numbers.
    Floats,
    /// Texts.
    Strings,
    /// A tensor.
    Tensor,
    /// A graph: a body or a branch.
    Graph,
}

impl AttributeType {
    const ALL: [Self; 8] = [
        Self::Int,
        Self::Float,
        Self::String,
        Self::Ints,
        Self::Floats,
        Self::Strings,
        Self::Tensor,
        Self::Graph,
    ];

    /// Returns its name in the table's lines and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Int => "int",
            Self::Float => "float",
            Self::String => "string",
            Self::Ints => "ints",
            Self::Floats => "floats",
            Self::Strings => "strings",
            Self::Tensor => "tensor",
            Self::Graph => "graph",
        }
    }

    /// Returns the type with a given name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|ty| ty.name() == name)
    }
}

impl fmt::Display for AttributeType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One attribute of an op.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Attribute {
    /// Its name.
    pub name: &'static str,
    /// Its type.
    pub ty: AttributeType,
    /// True if every node has it.
    pub is_required: bool,
    /// Its default, if that is one number or one word.
    pub default: Option<AttributeDefault>,
}

/// The default value of an attribute.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AttributeDefault {
    /// An integer.
    Int(i64),
    /// A number.
    Float(f32),
    /// A word.
    Text(&'static str),
}

impl Attribute {
    /// Parses one word of a line; None if it does not follow the module's table.
    fn of(word: &'static str) -> Option<Self> {
        let (name, rest) = word.split_once(':')?;
        let (ty, default) = match rest.split_once('=') {
            Some((ty, default)) => (AttributeType::of_name(ty)?, Some(default)),
            None => (AttributeType::of_name(rest.strip_suffix('?').unwrap_or(rest))?, None),
        };
        let is_required = default.is_none() && !rest.ends_with('?');
        let default = match (ty, default) {
            (_, None) => None,
            (AttributeType::Int, Some(text)) => Some(AttributeDefault::Int(text.parse().ok()?)),
            (AttributeType::Float, Some(text)) => Some(AttributeDefault::Float(text.parse().ok()?)),
            (AttributeType::String, Some(text)) => Some(AttributeDefault::Text(text)),
            _ => return None,
        };
        Some(Self { name, ty, is_required, default })
    }
}

/// A mismatch between a node's attributes and its op's.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum AttributeFault {
    /// A required attribute is missing.
    Missing(Attribute),
    /// An attribute has another type.
    Type {
        /// The attribute in the op's row.
        expected: Attribute,
        /// The type in the node.
        found: AttributeType,
    },
}

impl fmt::Display for AttributeFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(Attribute { name, ty, .. }) => {
                write!(f, "expected the attribute {name} of type {ty}, found none")
            }
            Self::Type { expected: Attribute { name, ty, .. }, found } => {
                write!(f, "expected the attribute {name} of type {ty}, found one of type {found}")
            }
        }
    }
}

/// The attributes of an op in its row's version.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Attributes {
    text: &'static str,
}

impl Attributes {
    /// Stores a line, which is parsed on use; a test parses all of the table's.
    pub(crate) const fn of(text: &'static str) -> Self {
        Self { text }
    }

    /// Returns the table's line.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns all of them, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = Attribute> + use<> {
        self.text.split_ascii_whitespace().filter_map(Attribute::of)
    }

    /// Returns whether there is one of that name.
    pub fn has(&self, name: &str) -> bool {
        self.iter().any(|attribute| attribute.name == name)
    }

    /// Checks the attributes of a node, graphs included: the types of known ones, and the presence of required ones. Unknown
    /// attributes may have any type.
    ///
    /// # Errors
    /// The first [`AttributeFault`] in the order of the line.
    pub fn check<'a, I>(&self, attributes: I) -> Result<(), AttributeFault>
    where
        I: Iterator<Item = (&'a str, AttributeType)> + Clone,
    {
        self.iter().try_for_each(|expected| {
            match attributes.clone().find(|(name, _)| *name == expected.name) {
                Some((_, found)) if found != expected.ty => Err(AttributeFault::Type { expected, found }),
                None if expected.is_required => Err(AttributeFault::Missing(expected)),
                _ => Ok(()),
            }
        })
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use AttributeType::{Float, Graph, Int, Ints, String};

    /// Checks attributes against a line, and expects this message, or success.
    fn check(text: &'static str, given: &[(&str, AttributeType)], expected: &str) {
        let found = Attributes::of(text).check(given.iter().copied()).err().map(|fault| fault.to_string());
        assert_eq!(found.unwrap_or_default(), expected, "{text} {given:?}");
    }

    #[test]
    fn types_and_presence() {
        let line = "alpha:float? axis:int perm:ints?";
        check(line, &[("axis", Int)], "");
        check(line, &[("perm", Ints), ("axis", Int), ("alpha", Float)], "");
        check(line, &[("axis", Int), ("of_a_former_version", String)], "");
        check(line, &[("perm", Ints)], "expected the attribute axis of type int, found none");
        check(line, &[("axis", Ints)], "expected the attribute axis of type int, found one of type ints");
        check(
            line,
            &[("axis", Int), ("alpha", Int)],
            "expected the attribute alpha of type float, found one of type int",
        );
        check("", &[("axis", Int)], "");
        check("body:graph", &[("body", Graph)], "");
        check("body:graph", &[], "expected the attribute body of type graph, found none");
    }

    /// A word that cannot be parsed would disable a check.
    #[test]
    fn all_lines_are_read() {
        for row in crate::all() {
            let words = row.attributes.text().split(' ').filter(|word| !word.is_empty()).count();
            let names: Vec<_> = row.attributes.iter().map(|attribute| attribute.name).collect();
            assert_eq!(names.len(), words, "{} {:?}", row.name, row.attributes);
            assert!(names.is_sorted_by(|a, b| a < b), "{} {names:?}", row.name);
        }
        assert!(["axis", "axis:integer", "axis:int??"].into_iter().all(|word| Attribute::of(word).is_none()));
    }
}
