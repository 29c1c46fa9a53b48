//! From text to a program.
//!
//! The text may be anything: its claims are checked before memory is taken for them, nesting is limited,
//! and errors name line and column.

use super::tokens::Tokens;
use super::{MAGIC, VERSION, is_value_byte, is_word_byte};
use crate::cancel::look;
use crate::error::{Error, ErrorKind, Result};
use crate::program::verify::REGION_DEPTH_MAX;
use crate::program::{Node, Op, Program, Region, Value, ValueId};
use std::collections::HashMap;

/// Reads a program's text, as [`super::print()`] writes it. It is not verified yet.
///
/// # Errors
/// [`ErrorKind::InvalidModel`] with line and column; [`ErrorKind::UnsupportedModel`] for a newer version of
/// the form.
pub fn parse(text: &str) -> Result<Program> {
    let mut parser =
        Parser { tokens: Tokens::new(text), program: Program::default(), visible: HashMap::new() };
    parser.program()?;
    Ok(parser.program)
}

struct Parser<'t> {
    tokens: Tokens<'t>,
    program: Program,
    /// Values that may be used here, by the text behind `%`.
    visible: HashMap<&'t str, ValueId>,
}

/// A value that the text defines: the text behind `%`, and its number.
type Definition<'t> = (&'t str, ValueId);

impl<'t> Parser<'t> {
    fn program(&mut self) -> Result<()> {
        self.tokens.keyword(MAGIC)?;
        let at = self.tokens.next_token();
        let version: u32 = self.tokens.number("the version of the form")?;
        if version != VERSION {
            let text = format!("expected version {VERSION} of the text form, found {version}");
            let error = self.tokens.error_at(at, text);
            let newer = version > VERSION;
            return Err(if newer { Error::new(ErrorKind::UnsupportedModel, error.text()) } else { error });
        }
        self.tokens.keyword("program")?;
        self.program.name = self.tokens.string("the program's name")?;
        let (region, _) = self.region(0)?;
        self.program.main = region;
        self.tokens.next_token();
        if !self.tokens.rest().is_empty() {
            return Err(self.tokens.error("expected the end behind the program"));
        }
        Ok(())
    }

    /// Parses `(inputs) { nodes return outputs }`. Returns the region and its definitions.
    fn region(&mut self, depth: usize) -> Result<(Region, Vec<Definition<'t>>)> {
        if depth > REGION_DEPTH_MAX {
            return Err(self.tokens.error(format!("regions nest deeper than {REGION_DEPTH_MAX}")));
        }
        let mut region = Region::default();
        let mut defined = Vec::new();
        self.tokens.expect("(")?;
        let mut first = true;
        while self.tokens.more(&mut first, ")")? {
            let input = self.definition()?;
            self.show(input)?;
            defined.push(input);
            region.inputs.push(input.1);
        }
        self.tokens.expect("{")?;
        while !self.tokens.eat_word("return") {
            self.statement(&mut region, &mut defined, depth)?;
        }
        let mut first = true;
        while self.tokens.more(&mut first, "}")? {
            region.outputs.push(self.used()?);
        }
        Ok((region, defined))
    }

    /// A node, or a constant.
    fn statement(
        &mut self,
        region: &mut Region,
        defined: &mut Vec<Definition<'t>>,
        depth: usize,
    ) -> Result<()> {
        look()?;
        let at = self.tokens.next_token();
        let mut results = Vec::new();
        while self.tokens.peek("%") || self.tokens.peek("_") {
            let unwanted = self.tokens.eat("_");
            results.push(if unwanted { None } else { Some(self.definition()?) });
            if self.tokens.eat("=") {
                break;
            }
            self.tokens.expect(",")?;
        }
        if !results.is_empty() && self.tokens.eat_word("const") {
            let [Some(result)] = results[..] else {
                return Err(self.tokens.error_at(at, "expected one value for a constant"));
            };
            let tensor = self.tokens.tensor()?;
            let value = self.program.value_mut(result.1);
            value.ty = Some(tensor.tensor_type());
            value.constant = Some(tensor);
            // Constants are seen to the end of the text, so they do not end with the region.
            return self.show(result);
        }
        let outputs = results.iter().map(|r| r.map(|(_, id)| id)).collect();
        let node = self.node(outputs, depth)?;
        region.nodes.push(node);
        for result in results.into_iter().flatten() {
            self.show(result)?;
            defined.push(result);
        }
        Ok(())
    }

    fn node(&mut self, outputs: Vec<Option<ValueId>>, depth: usize) -> Result<Node> {
        let mut node = Node::new(self.op()?, Vec::new(), outputs);
        self.tokens.expect("(")?;
        let mut first = true;
        while self.tokens.more(&mut first, ")")? {
            let absent = self.tokens.eat("_");
            node.inputs.push(if absent { None } else { Some(self.used()?) });
        }
        if self.tokens.eat_word("as") {
            node.name = self.tokens.string("the node's name")?.into();
        }
        if self.tokens.eat("{") {
            let mut first = true;
            while self.tokens.more(&mut first, "}")? {
                let name = self.tokens.word("an attribute's name")?;
                self.tokens.expect("=")?;
                node.attrs.push((name.into(), self.tokens.attr()?));
            }
        }
        while let Some(name) = self.region_name()? {
            let (region, defined) = self.region(depth + 1)?;
            for (token, _) in defined {
                self.visible.remove(token);
            }
            node.regions.push((name.into(), region));
        }
        Ok(node)
    }

    /// A region's name, if one follows: only it is followed by `(`.
    fn region_name(&mut self) -> Result<Option<String>> {
        let start = self.tokens.next_token();
        let is_name = self.tokens.peek_char().is_some_and(|c| c == '"' || c.is_ascii_alphabetic());
        if is_name && !self.tokens.peek_word("return") {
            let name = self.tokens.word("a region's name")?;
            if self.tokens.peek("(") {
                return Ok(Some(name));
            }
        }
        self.tokens.back_to(start);
        Ok(None)
    }

    /// `Name@version`, `domain.Name@version`; the parts may be quoted.
    fn op(&mut self) -> Result<Op> {
        let (domain, name) = if self.tokens.peek("\"") {
            let first = self.tokens.string("an op")?;
            if self.tokens.eat(".") {
                (first, self.tokens.string("the op's name")?)
            } else {
                (String::new(), first)
            }
        } else {
            let op = self.tokens.run(|b| is_word_byte(b) || b == b'.');
            let (domain, name) = op.rsplit_once('.').unwrap_or(("", op));
            if name.is_empty() {
                return Err(self.tokens.error("expected an op, a value or return"));
            }
            (domain.to_owned(), name.to_owned())
        };
        self.tokens.expect("@")?;
        let version = self.tokens.number("the op's version")?;
        Ok(Op { domain: domain.into(), name: name.into(), version })
    }

    /// A value that is defined here, with its type. It may be used once it is shown.
    fn definition(&mut self) -> Result<Definition<'t>> {
        let (token, name) = self.value_token()?;
        let ty = if self.tokens.eat(":") { Some(self.tokens.tensor_type()?) } else { None };
        if u32::try_from(self.program.values.len()).is_err() {
            return Err(self.tokens.error("expected fewer than 2^32 values"));
        }
        let id = self.program.add_value(Value { name: name.into(), ty, constant: None });
        Ok((token, id))
    }

    /// Makes a value visible.
    fn show(&mut self, (token, id): Definition<'t>) -> Result<()> {
        match self.visible.insert(token, id) {
            None => Ok(()),
            Some(_) => {
                let text = format!("expected one definition of %{token}, found another before this");
                Err(self.tokens.error_at(self.tokens.position(), text))
            }
        }
    }

    fn used(&mut self) -> Result<ValueId> {
        let at = self.tokens.next_token();
        let (token, _) = self.value_token()?;
        self.visible.get(token).copied().ok_or_else(|| {
            let text = format!("expected a value that is defined before, found %{token}");
            self.tokens.error_at(at, text)
        })
    }

    /// Parses `%name`, `%"name"`, `%number`, each possibly with `#number`. Returns the text behind the `%`, which
    /// identifies the value, and the name.
    fn value_token(&mut self) -> Result<(&'t str, String)> {
        self.tokens.expect("%")?;
        let start = self.tokens.position();
        let name = if self.tokens.peek_here("\"") {
            self.tokens.string("a value's name")?
        } else {
            let word = self.tokens.run(is_value_byte);
            if word.is_empty() {
                return Err(self.tokens.error("expected a value's name or number"));
            }
            let is_number = word.bytes().all(|b| b.is_ascii_digit());
            if word.starts_with(|c: char| c.is_ascii_digit()) && !is_number {
                let text = format!("expected a name that begins with a digit in quotes, found %{word}");
                return Err(self.tokens.error_at(start, text));
            }
            if is_number { String::new() } else { word.to_owned() }
        };
        if self.tokens.eat_here("#") {
            self.tokens.run(|b| b.is_ascii_digit());
        }
        Ok((self.tokens.since(start), name))
    }
}
