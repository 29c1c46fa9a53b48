//! Words, numbers and quoted texts, and errors with line and column.

use crate::error::{Error, ErrorKind, Result};
use std::str::{CharIndices, FromStr};

/// A text and how far it was read.
pub(super) struct Tokens<'t> {
    text: &'t str,
    /// Byte that is read next; always at a character's start.
    position: usize,
}

impl<'t> Tokens<'t> {
    pub(super) fn new(text: &'t str) -> Self {
        Self { text, position: 0 }
    }

    /// Skips space and comments. Returns the position of the next token.
    pub(super) fn next_token(&mut self) -> usize {
        loop {
            let rest = self.rest();
            let trimmed = rest.trim_start();
            self.position += rest.len() - trimmed.len();
            if !trimmed.starts_with("//") {
                return self.position;
            }
            self.position += trimmed.find('\n').unwrap_or(trimmed.len());
        }
    }

    /// Returns the first character of the next token.
    pub(super) fn peek_char(&mut self) -> Option<char> {
        self.next_token();
        self.rest().chars().next()
    }

    /// Returns whether `token` follows.
    pub(super) fn peek(&mut self, token: &str) -> bool {
        self.next_token();
        self.peek_here(token)
    }

    /// Returns whether `token` follows without space before it.
    pub(super) fn peek_here(&self, token: &str) -> bool {
        self.rest().starts_with(token)
    }

    /// Consumes `token` if it follows.
    pub(super) fn eat(&mut self, token: &str) -> bool {
        self.next_token();
        self.eat_here(token)
    }

    /// Consumes `token` if it follows without space before it.
    pub(super) fn eat_here(&mut self, token: &str) -> bool {
        let found = self.peek_here(token);
        if found {
            self.position += token.len();
        }
        found
    }

    /// Consumes `token`, which must follow.
    pub(super) fn expect(&mut self, token: &str) -> Result<()> {
        if self.eat(token) { Ok(()) } else { Err(self.error(format!("expected {token:?}"))) }
    }

    /// Returns whether another element of a list follows; if not, consumes the `end`. Elements are between commas.
    pub(super) fn more(&mut self, first: &mut bool, end: &str) -> Result<bool> {
        if self.eat(end) {
            return Ok(false);
        }
        if !*first && !self.eat(",") {
            return Err(self.error(format!("expected \",\" or {end:?}")));
        }
        *first = false;
        Ok(true)
    }

    /// Returns whether the whole word `word` follows.
    pub(super) fn peek_word(&mut self, word: &str) -> bool {
        let start = self.next_token();
        let found = self.run(super::is_word_byte);
        self.position = start;
        found == word
    }

    /// Consumes the whole word `word` if it follows.
    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let found = self.peek_word(word);
        if found {
            self.position += word.len();
        }
        found
    }

    /// Consumes the word `word`, which must follow.
    pub(super) fn keyword(&mut self, word: &str) -> Result<()> {
        if self.eat_word(word) { Ok(()) } else { Err(self.error(format!("expected {word}"))) }
    }

    /// A word, possibly in quotes.
    pub(super) fn word(&mut self, what: &str) -> Result<String> {
        if self.peek("\"") {
            return self.string(what);
        }
        let at = self.position;
        let word = self.run(super::is_word_byte);
        if word.starts_with(|c: char| c.is_ascii_alphabetic()) {
            return Ok(word.to_owned());
        }
        self.position = at;
        Err(self.error(format!("expected {what}")))
    }

    /// A text in quotes.
    pub(super) fn string(&mut self, what: &str) -> Result<String> {
        let start = self.next_token();
        if !self.eat("\"") {
            return Err(self.error(format!("expected {what} in quotes")));
        }
        let mut string = String::new();
        let mut chars = self.text[self.position..].char_indices();
        while let Some((i, c)) = chars.next() {
            match c {
                '"' => {
                    self.position += i + 1;
                    return Ok(string);
                }
                '\\' => string.push(escaped(&mut chars).ok_or_else(|| {
                    let text = "expected \\n, \\r, \\t, \\\", \\\\ or \\u{..}";
                    self.error_at(self.position + i, text)
                })?),
                c => string.push(c),
            }
        }
        Err(self.error_at(start, "expected a quote at the end of this text"))
    }

    /// A number of a type of Rust's.
    pub(super) fn number<T: FromStr>(&mut self, what: &str) -> Result<T> {
        let at = self.next_token();
        let token = self.number_token();
        self.parsed(at, token, what)
    }

    /// Parses a number's text.
    pub(super) fn parsed<T: FromStr>(&self, at: usize, token: &str, what: &str) -> Result<T> {
        token.parse().map_err(|_| self.error_at(at, format!("expected {what}, found {token:?}")))
    }

    /// Digits, signs, points, exponents and the names of special numbers, as far as they go.
    pub(super) fn number_token(&mut self) -> &'t str {
        let start = self.next_token();
        let word = self.run(|b| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.'));
        if word == "nan" && self.eat_here("(") {
            self.run(|b| b.is_ascii_alphanumeric());
            self.eat_here(")");
        }
        self.since(start)
    }

    /// The longest run of such bytes from here; they are ASCII.
    pub(super) fn run(&mut self, accepted: impl Fn(u8) -> bool) -> &'t str {
        let rest = self.rest();
        let len = rest.bytes().position(|b| !(b.is_ascii() && accepted(b))).unwrap_or(rest.len());
        self.position += len;
        &rest[..len]
    }

    /// Where the next byte is.
    pub(super) fn position(&self) -> usize {
        self.position
    }

    /// Returns the text read since a position.
    pub(super) fn since(&self, start: usize) -> &'t str {
        &self.text[start..self.position]
    }

    /// Goes back to a position that was given before.
    pub(super) fn back_to(&mut self, position: usize) {
        self.position = position;
    }

    /// Returns the text not read yet.
    pub(super) fn rest(&self) -> &'t str {
        &self.text[self.position..]
    }

    /// Returns an error at the next token.
    pub(super) fn error(&self, text: impl Into<String>) -> Error {
        let shown: String = self.rest().chars().take_while(|c| !c.is_whitespace()).take(20).collect();
        let found = if self.rest().is_empty() { "the end".to_owned() } else { format!("{shown:?}") };
        self.error_at(self.position, format!("{}, found {found}", text.into()))
    }

    /// Returns an error at a position.
    pub(super) fn error_at(&self, position: usize, text: impl Into<String>) -> Error {
        let before = &self.text[..position];
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        let column = before.chars().rev().take_while(|&c| c != '\n').count() + 1;
        let text = format!("line {line}, column {column}: {}", text.into());
        Error::new(ErrorKind::InvalidModel, text)
    }
}

/// The character that an escape stands for, after its backslash.
fn escaped(chars: &mut CharIndices<'_>) -> Option<char> {
    match chars.next()?.1 {
        'n' => Some('\n'),
        'r' => Some('\r'),
        't' => Some('\t'),
        'u' => code_point(chars),
        c @ ('"' | '\\') => Some(c),
        _ => None,
    }
}

/// The character of `{hexadecimal}`.
fn code_point(chars: &mut CharIndices<'_>) -> Option<char> {
    if chars.next()?.1 != '{' {
        return None;
    }
    let mut code = 0u32;
    loop {
        match chars.next()?.1 {
            '}' => return char::from_u32(code),
            c => code = code.checked_mul(16)?.checked_add(c.to_digit(16)?)?,
        }
    }
}
