//! One side of an op's signature: its inputs or its outputs.
//!
//! It is written as one line of names, so that the table reads like a specification, and is parsed at compile time:
//!
//! | written | meaning |
//! |---|---|
//! | `X` | required |
//! | `B?` | optional: may be absent, or omitted at the end |
//! | `inputs+` | one or more, of one element type |
//! | `outputs+~` | one or more, of any element types: operands or results of a region |
//! | `v_initial*~` | zero or more, likewise |
//! | `indices:1` | has element type 1 of the op; without a number it has type 0. Operands of one number have one type |
//! | `shape:1!` | likewise, and known when a kernel is prepared |
//!
//! A repeated operand comes last.

use std::fmt;

/// The side of a node's operands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Side {
    /// Values that it reads.
    Input,
    /// Values that it makes.
    Output,
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Input => "input",
            Self::Output => "output",
        })
    }
}

/// The inputs or the outputs of an op.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Operands {
    side: Side,
    text: &'static str,
    /// Number of operands except the repeated one.
    n_single: u32,
    /// Bit i: operand i is required.
    required: u64,
    /// Bit i: operand i is known when a kernel is prepared.
    known: u64,
    /// The number of each operand's element type, that of the repeated one last.
    types: [u8; LISTED_MAX],
    repeated: Option<Repeated>,
}

/// Maximum number of operands in a line.
const LISTED_MAX: usize = 12;

/// The last operand, if it is repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Repeated {
    at_least: u32,
    /// True if all have one element type. Others belong to control flow, where a region determines them.
    is_one_type: bool,
}

/// A mismatch between a node's operands and its op's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A required operand is absent or omitted.
    Absent {
        /// Its side.
        side: Side,
        /// Its position.
        idx: usize,
        /// Its name in the op's specification.
        name: &'static str,
    },
    /// The node has more operands than the op.
    TooMany {
        /// Their side.
        side: Side,
        /// Number of operands found.
        found: usize,
        /// Maximum number of the op.
        most: usize,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent { side, idx, name } => write!(f, "expected the {side} {idx} ({name}), found none"),
            Self::TooMany { side, found, most } => {
                let s = if *most == 1 { "" } else { "s" };
                write!(f, "expected at most {most} {side}{s}, found {found}")
            }
        }
    }
}

impl Operands {
    /// Parses a line of names.
    ///
    /// # Panics
    /// If it does not follow the module's table; at compile time, since the rows are constants.
    pub(crate) const fn of(side: Side, text: &'static str) -> Self {
        let bytes = text.as_bytes();
        let types = [0; LISTED_MAX];
        let mut operands = Self { side, text, n_single: 0, required: 0, known: 0, types, repeated: None };
        let mut i = 0;
        while i < bytes.len() {
            assert!(operands.repeated.is_none(), "a repeated operand stands last");
            let begin = i;
            while i < bytes.len() && (bytes[i].is_ascii_alphanumeric() || bytes[i] == b'_') {
                i += 1;
            }
            assert!(i > begin, "an operand without a name");
            if i + 1 < bytes.len() && bytes[i] == b':' {
                assert!(bytes[i + 1].is_ascii_digit(), "a type has a number");
                operands.types[operands.n_single as usize] = bytes[i + 1] - b'0';
                i += 2;
            }
            if i < bytes.len() && bytes[i] == b'!' {
                operands.known |= 1 << operands.n_single;
                i += 1;
            }
            let mark = if i < bytes.len() { bytes[i] } else { b' ' };
            i += 1;
            match mark {
                b' ' => {
                    operands.required |= 1 << operands.n_single;
                    operands.n_single += 1;
                    continue;
                }
                b'?' => operands.n_single += 1,
                b'+' | b'*' => {
                    let is_one_type = i >= bytes.len() || bytes[i] != b'~';
                    operands.repeated = Some(Repeated { at_least: (mark == b'+') as u32, is_one_type });
                    i += !is_one_type as usize;
                }
                _ => panic!("expected one of ? + * after a name"),
            }
            assert!(i >= bytes.len() || bytes[i] == b' ', "expected a space between operands");
            i += 1;
        }
        operands
    }

    /// Returns the table's line.
    pub fn text(&self) -> &'static str {
        self.text
    }

    /// Returns the names in the op's specification, the repeated one last.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let name = |word: &'static str| word.split([':', '!', '?', '+', '*']).next().unwrap_or_default();
        self.text.split(' ').map(name).filter(|name| !name.is_empty())
    }

    /// Returns the name of operand `i`; all repeated operands share one.
    pub fn name(&self, i: usize) -> &'static str {
        self.names().take(i + 1).last().unwrap_or_default()
    }

    /// Returns the minimum number of operands that a node lists: up to the last required one.
    pub const fn n_min(&self) -> usize {
        match self.repeated {
            Some(repeated) if repeated.at_least > 0 => (self.n_single + repeated.at_least) as usize,
            _ => (u64::BITS - self.required.leading_zeros()) as usize,
        }
    }

    /// Returns the maximum number of operands of a node; None if there is no limit.
    pub const fn n_max(&self) -> Option<usize> {
        match self.repeated {
            Some(_) => None,
            None => Some(self.n_single as usize),
        }
    }

    /// Returns the numbers of the operands' element types, that of the repeated one last.
    pub const fn types(&'static self) -> &'static [u8] {
        self.types.split_at(self.n_single as usize + self.repeated.is_some() as usize).0
    }

    /// Returns a mask whose bit i is set if operand i is known when a kernel is prepared.
    pub const fn known(&self) -> u64 {
        self.known
    }

    /// Returns the number of operands except the repeated one.
    pub const fn n_single(&self) -> usize {
        self.n_single as usize
    }

    /// Returns whether operand `i` is present in every node that lists that many.
    ///
    /// A repeated operand is, except for results of control flow: a region gives those whether they are used or not.
    pub fn is_required(&self, i: usize) -> bool {
        match u32::try_from(i) {
            Ok(i) if i < self.n_single => self.required & 1 << i != 0,
            _ => self.repeated.is_some_and(|repeated| self.side == Side::Input || repeated.is_one_type),
        }
    }

    /// Checks the operands of a node. Trailing optional ones may be omitted.
    ///
    /// # Errors
    /// The first [`Fault`].
    pub fn check<T>(&self, operands: &[Option<T>]) -> Result<(), Fault> {
        let (side, found) = (self.side, operands.len());
        if let Some(most) = self.n_max().filter(|&most| found > most) {
            return Err(Fault::TooMany { side, found, most });
        }
        let is_absent = |i: &usize| self.is_required(*i) && operands.get(*i).is_none_or(Option::is_none);
        match (0..found.max(self.n_min())).find(is_absent) {
            Some(idx) => Err(Fault::Absent { side, idx, name: self.name(idx) }),
            None => Ok(()),
        }
    }
}

impl fmt::Debug for Operands {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a node whose operands are present where `given` has an x, and expects this message, or success.
    fn check(side: Side, text: &'static str, given: &str, expected: &str) {
        let operands: Vec<Option<()>> = given.bytes().map(|mark| (mark == b'x').then_some(())).collect();
        let found = Operands::of(side, text).check(&operands).err().map(|fault| fault.to_string());
        assert_eq!(found.unwrap_or_default(), expected, "{text} {given:?}");
    }

    #[test]
    fn required_and_optional() {
        let side = Side::Input;
        check(side, "X W B?", "xxx", "");
        check(side, "X W B?", "xx", "");
        check(side, "X W B?", "xx-", "");
        check(side, "X W B?", "x", "expected the input 1 (W), found none");
        check(side, "X W B?", "x-x", "expected the input 1 (W), found none");
        check(side, "X W B?", "", "expected the input 0 (X), found none");
        check(side, "X W B?", "xxx-", "expected at most 3 inputs, found 4");
        check(side, "", "", "");
        check(side, "", "x", "expected at most 0 inputs, found 1");
        check(Side::Output, "Y? Y_h?", "", "");
        check(Side::Output, "Y? Y_h?", "-x", "");
        check(Side::Output, "Y", "xx", "expected at most 1 output, found 2");
    }

    #[test]
    fn repeated() {
        let side = Side::Input;
        check(side, "inputs+", "x", "");
        check(side, "inputs+", "xxxxx", "");
        check(side, "inputs+", "", "expected the input 0 (inputs), found none");
        check(side, "inputs+", "x-x", "expected the input 1 (inputs), found none");
        check(side, "M? cond? v_initial*~", "--", "");
        check(side, "M? cond? v_initial*~", "", "");
        check(side, "M? cond? v_initial*~", "x-xx", "");
        check(side, "M? cond? v_initial*~", "x-x-", "expected the input 3 (v_initial), found none");
        check(Side::Output, "outputs+", "-x", "expected the output 0 (outputs), found none");
        check(Side::Output, "outputs+~", "-x", "");
    }

    #[test]
    fn counts() {
        let counts = |text| {
            let operands = Operands::of(Side::Input, text);
            (operands.n_min(), operands.n_max(), operands.n_single())
        };
        assert_eq!(counts("X W B?"), (2, Some(3), 3));
        assert_eq!(counts("Y? Y_h?"), (0, Some(2), 2));
        assert_eq!(counts("inputs+"), (1, None, 0));
        assert_eq!(counts("M? cond? v_initial*~"), (0, None, 2));
        let names = Operands::of(Side::Input, "M? cond? v_initial*~");
        assert_eq!(names.names().collect::<Vec<_>>(), ["M", "cond", "v_initial"]);
        assert_eq!((names.name(1), names.name(7)), ("cond", "v_initial"));
    }

    #[test]
    fn types_and_known_operands() {
        static OPERANDS: Operands = Operands::of(Side::Input, "data starts:1! axes:1!? scale? parts:2+");
        assert_eq!(OPERANDS.types(), [0, 1, 1, 0, 2]);
        assert_eq!(OPERANDS.known(), 0b110);
        assert_eq!(OPERANDS.names().collect::<Vec<_>>(), ["data", "starts", "axes", "scale", "parts"]);
        assert_eq!((OPERANDS.n_min(), OPERANDS.is_required(2)), (5, false));
    }
}
