//! Protobuf messages as lists of fields, so that one can be changed without knowing the others.
//!
//! ONNX's schema is not used here: a field is a number and its content, and untouched fields are written as they
//! were read.

/// A field's content.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Wire {
    /// A whole number, as an unsigned one of 64 bits.
    Varint(u64),
    /// Eight bytes.
    Fixed64([u8; 8]),
    /// A string, bytes, a message, or packed numbers.
    Bytes(Vec<u8>),
    /// Four bytes.
    Fixed32([u8; 4]),
}

/// A message's fields in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Message {
    pub fields: Vec<(u32, Wire)>,
}

impl Message {
    /// Reads a message; None if it is damaged.
    pub fn parse(mut bytes: &[u8]) -> Option<Self> {
        let mut fields = Vec::new();
        while !bytes.is_empty() {
            let tag = take_varint(&mut bytes)?;
            let wire = match tag & 7 {
                0 => Wire::Varint(take_varint(&mut bytes)?),
                1 => Wire::Fixed64(take(&mut bytes, 8)?.try_into().ok()?),
                2 => {
                    let n = usize::try_from(take_varint(&mut bytes)?).ok()?;
                    Wire::Bytes(take(&mut bytes, n)?.to_vec())
                }
                5 => Wire::Fixed32(take(&mut bytes, 4)?.try_into().ok()?),
                _ => return None,
            };
            fields.push((u32::try_from(tag >> 3).ok()?, wire));
        }
        Some(Self { fields })
    }

    /// Writes the message.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for (number, wire) in &self.fields {
            let mut put = |kind: u64| put_varint(&mut bytes, (u64::from(*number) << 3) | kind);
            match wire {
                Wire::Varint(value) => {
                    put(0);
                    put_varint(&mut bytes, *value);
                }
                Wire::Fixed64(value) => {
                    put(1);
                    bytes.extend(value);
                }
                Wire::Bytes(value) => {
                    put(2);
                    put_varint(&mut bytes, value.len() as u64);
                    bytes.extend(value);
                }
                Wire::Fixed32(value) => {
                    put(5);
                    bytes.extend(value);
                }
            }
        }
        bytes
    }

    /// Returns every field of a number.
    pub fn all(&self, number: u32) -> impl Iterator<Item = &Wire> {
        self.fields.iter().filter(move |(found, _)| *found == number).map(|(_, wire)| wire)
    }

    /// Returns the bytes of every field of a number.
    pub fn all_bytes(&self, number: u32) -> impl Iterator<Item = &[u8]> {
        self.all(number)
            .filter_map(|wire| if let Wire::Bytes(bytes) = wire { Some(bytes.as_slice()) } else { None })
    }

    /// Returns a text.
    pub fn text(&self, number: u32) -> &str {
        self.all_bytes(number).last().and_then(|bytes| str::from_utf8(bytes).ok()).unwrap_or_default()
    }

    /// Returns a whole number.
    pub fn int(&self, number: u32) -> Option<i64> {
        self.all(number)
            .filter_map(|wire| if let Wire::Varint(value) = wire { Some(value.cast_signed()) } else { None })
            .last()
    }

    /// Returns whole numbers, packed or not.
    pub fn ints(&self, number: u32) -> Vec<i64> {
        let mut ints = Vec::new();
        for wire in self.all(number) {
            match wire {
                Wire::Varint(value) => ints.push(value.cast_signed()),
                Wire::Bytes(packed) => {
                    let mut rest = packed.as_slice();
                    while let Some(value) = take_varint(&mut rest) {
                        ints.push(value.cast_signed());
                    }
                }
                Wire::Fixed32(_) | Wire::Fixed64(_) => {}
            }
        }
        ints
    }

    /// Removes every field of a number.
    pub fn remove(&mut self, number: u32) {
        self.fields.retain(|(found, _)| *found != number);
    }

    /// Adds a field at the end.
    pub fn push(&mut self, number: u32, wire: Wire) {
        self.fields.push((number, wire));
    }

    /// Puts fields in the place of all of a number.
    pub fn replace(&mut self, number: u32, wires: impl IntoIterator<Item = Wire>) {
        self.remove(number);
        self.fields.extend(wires.into_iter().map(|wire| (number, wire)));
    }

    /// Changes the `nth` message of a field.
    pub fn change(&mut self, number: u32, nth: usize, change: impl FnOnce(&mut Self)) -> Option<()> {
        let mut found = self.fields.iter_mut().filter(|(found, _)| *found == number);
        let (_, Wire::Bytes(bytes)) = found.nth(nth)? else { return None };
        let mut inner = Self::parse(bytes)?;
        change(&mut inner);
        *bytes = inner.bytes();
        Some(())
    }
}

/// Text as a field.
pub(crate) fn text(text: &str) -> Wire {
    Wire::Bytes(text.as_bytes().to_vec())
}

/// Returns a number as a field.
pub(crate) fn int(value: i64) -> Wire {
    Wire::Varint(value.cast_unsigned())
}

fn take<'a>(bytes: &mut &'a [u8], n: usize) -> Option<&'a [u8]> {
    let (first, rest) = bytes.split_at_checked(n)?;
    *bytes = rest;
    Some(first)
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = take(bytes, 1)?[0];
        value |= u64::from(byte & 127) << shift;
        if byte < 128 {
            return Some(value);
        }
    }
    None
}

fn put_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 128 {
        bytes.push((value & 127) as u8 | 128);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_are_not_touched_stay_as_they_were() {
        let mut message = Message::default();
        message.push(1, int(-1));
        message.push(2, text("a"));
        message.push(3, Wire::Fixed32(1f32.to_le_bytes()));
        message.push(2, text("b"));
        let read = Message::parse(&message.bytes()).expect("what was written is whole");
        assert_eq!(read, message);
        assert_eq!((read.int(1), read.text(2)), (Some(-1), "b"));
        assert_eq!(Message::parse(&[0x0a, 200]), None, "a length beyond the end");
    }
}
