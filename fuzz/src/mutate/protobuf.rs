//! Mutates protobuf's wire format (<https://protobuf.dev/programming-guides/encoding>) as a tree of fields, without a
//! schema: fields are changed, removed, repeated, reordered, and copied from another message, and lengths are corrected.

use fastrand::Rng;

/// Maximum nesting of messages; deeper ones count as bytes.
const NESTING_MAX: usize = 32;

/// Integers that often break sizes, indices, axes and enumerations.
const NUMBERS: &[i64] = &[
    0,
    1,
    -1,
    2,
    -2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
    10,
    11,
    13,
    16,
    64,
    255,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    1 << 32,
    1 << 40,
    1 << 62,
    i64::MIN,
    i64::MAX,
];

/// Floats with special cases in formulas.
const FLOATS: &[f32] =
    &[0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-30, 1e30, f32::INFINITY, f32::NEG_INFINITY, f32::NAN];

#[derive(Clone)]
struct Field {
    number: u64,
    value: Value,
}

#[derive(Clone)]
enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    /// Content that is not a message: text, packed numbers, tensors' content.
    Bytes(Vec<u8>),
    Message(Vec<Field>),
}

/// Returns a changed message that is as well formed as the given one; `None` if the bytes are not a message. `change_bytes`
/// changes text and other bytes in it.
#[must_use]
pub fn mutate(message: &[u8], seed: u64, change_bytes: &mut dyn FnMut(&mut Vec<u8>)) -> Option<Vec<u8>> {
    let mut root = parse(message, 0)?;
    let rng = &mut Rng::with_seed(seed);
    let places = places(&root);
    let path = &rng.choice(&places)?.path;
    let (siblings, at) = siblings(&mut root, path)?;
    match rng.u8(..8) {
        0 => drop(siblings.remove(at)),
        1 => siblings.insert(at, siblings[at].clone()),
        2 => {
            let other = rng.usize(..siblings.len());
            siblings.swap(at, other);
        }
        3 => {
            let donor = root.clone();
            take_over(&mut root, donor, rng)?;
        }
        _ => change(&mut siblings[at].value, rng, change_bytes),
    }
    Some(write(&root))
}

/// Returns the first message with a field of the second one, at a place where such a field may occur; `None` if either is
/// not a message, or no field of the second fits.
#[must_use]
pub fn cross(message: &[u8], donor: &[u8], seed: u64) -> Option<Vec<u8>> {
    let mut root = parse(message, 0)?;
    take_over(&mut root, parse(donor, 0)?, &mut Rng::with_seed(seed))?;
    Some(write(&root))
}

/// Replaces a field by one of `donor` of the same kind, or inserts it before.
fn take_over(root: &mut Vec<Field>, mut donor: Vec<Field>, rng: &mut Rng) -> Option<()> {
    let places_of_root = places(root);
    let place = rng.choice(&places_of_root)?;
    let fitting: Vec<FieldPlace> =
        places(&donor).into_iter().filter(|other| other.kind == place.kind).collect();
    let (others, from) = siblings(&mut donor, &rng.choice(&fitting)?.path)?;
    let field = others.swap_remove(from);
    let (siblings, at) = siblings(root, &place.path)?;
    if rng.bool() {
        siblings[at] = field;
    } else {
        siblings.insert(at, field);
    }
    Some(())
}

/// Position of a field.
struct FieldPlace {
    /// Its index in its message, preceded by that message's index in its own, and so on.
    path: Vec<usize>,
    /// The number of its message and its own, which mostly identify the kind of a field in a schema.
    kind: (u64, u64),
}

/// Returns the positions of all fields, at any depth.
fn places(root: &[Field]) -> Vec<FieldPlace> {
    fn walk(fields: &[Field], message: u64, path: &mut Vec<usize>, found: &mut Vec<FieldPlace>) {
        for (i, field) in fields.iter().enumerate() {
            path.push(i);
            found.push(FieldPlace { path: path.clone(), kind: (message, field.number) });
            if let Value::Message(within) = &field.value {
                walk(within, field.number, path, found);
            }
            path.pop();
        }
    }
    let mut found = Vec::new();
    walk(root, 0, &mut Vec::new(), &mut found);
    found
}

/// Returns the message that contains a field, and the field's index there. `None` for an invalid path.
fn siblings<'a>(root: &'a mut Vec<Field>, path: &[usize]) -> Option<(&'a mut Vec<Field>, usize)> {
    let (last, above) = path.split_last()?;
    let message = above.iter().try_fold(root, |fields, i| match &mut fields.get_mut(*i)?.value {
        Value::Message(within) => Some(within),
        _ => None,
    })?;
    Some((message, *last))
}

/// Changes a field's content but not its kind.
fn change(value: &mut Value, rng: &mut Rng, change_bytes: &mut dyn FnMut(&mut Vec<u8>)) {
    match value {
        Value::Varint(number) => *number = another(*number, rng),
        Value::Fixed64(bytes) => *bytes = another(u64::from_le_bytes(*bytes), rng).to_le_bytes(),
        Value::Fixed32(bytes) => *bytes = FLOATS[rng.usize(..FLOATS.len())].to_le_bytes(),
        Value::Bytes(bytes) => {
            let packed = numbers(bytes);
            if bytes.len().is_multiple_of(8) && !bytes.is_empty() && rng.bool() {
                let at = rng.usize(..bytes.len() / 8) * 8;
                let word = <[u8; 8]>::try_from(&bytes[at..at + 8]).expect("the range has eight");
                bytes[at..at + 8].copy_from_slice(&another(u64::from_le_bytes(word), rng).to_le_bytes());
            } else if let Some(mut packed) = packed.filter(|packed| !packed.is_empty() && rng.u8(..4) > 0) {
                change_list(&mut packed, rng);
                bytes.clear();
                packed.iter().for_each(|number| write_varint(*number, bytes));
            } else {
                change_bytes(bytes);
            }
        }
        Value::Message(fields) => {
            if let Some(field) = rng.choice(fields) {
                change(&mut field.value, rng, change_bytes);
            }
        }
    }
}

/// Changes, repeats or removes a number of a list.
fn change_list(numbers: &mut Vec<u64>, rng: &mut Rng) {
    let at = rng.usize(..numbers.len());
    match rng.u8(..4) {
        0 => drop(numbers.remove(at)),
        1 => numbers.insert(at, numbers[at]),
        _ => numbers[at] = another(numbers[at], rng),
    }
}

/// Returns another number: a neighbour, one with a flipped bit, or a special one.
fn another(number: u64, rng: &mut Rng) -> u64 {
    match rng.u8(..6) {
        0 => number.wrapping_add(1),
        1 => number.wrapping_sub(1),
        2 => number ^ (1 << rng.u32(..64)),
        _ => NUMBERS[rng.usize(..NUMBERS.len())].cast_unsigned(),
    }
}

/// Decodes packed numbers; `None` if the bytes are not packed numbers.
fn numbers(mut bytes: &[u8]) -> Option<Vec<u64>> {
    let mut numbers = Vec::new();
    while !bytes.is_empty() {
        numbers.push(read_varint(&mut bytes)?);
    }
    Some(numbers)
}

/// Returns the fields of a message; `None` if any of the bytes do not parse.
fn parse(mut bytes: &[u8], nesting: usize) -> Option<Vec<Field>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let key = read_varint(&mut bytes)?;
        let number = key >> 3;
        let value = match key & 7 {
            0 => Value::Varint(read_varint(&mut bytes)?),
            1 => Value::Fixed64(*bytes.split_off(..8)?.as_array()?),
            2 => {
                let len = usize::try_from(read_varint(&mut bytes)?).ok()?;
                let content = bytes.split_off(..len)?;
                // Text that parses as a message counts as one, because it is written back unchanged.
                let may_be_message = !content.is_empty() && nesting < NESTING_MAX;
                let within = may_be_message.then(|| parse(content, nesting + 1)).flatten();
                within.map_or_else(|| Value::Bytes(content.to_vec()), Value::Message)
            }
            5 => Value::Fixed32(*bytes.split_off(..4)?.as_array()?),
            _ => return None,
        };
        // Field number 0 is invalid.
        (number > 0).then(|| fields.push(Field { number, value }))?;
    }
    Some(fields)
}

fn write(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field { number, value } in fields {
        let key = |wire_type: u64| number << 3 | wire_type;
        match value {
            Value::Varint(value) => {
                write_varint(key(0), &mut bytes);
                write_varint(*value, &mut bytes);
            }
            Value::Fixed64(value) => {
                write_varint(key(1), &mut bytes);
                bytes.extend(value);
            }
            Value::Fixed32(value) => {
                write_varint(key(5), &mut bytes);
                bytes.extend(value);
            }
            Value::Bytes(content) => write_content(key(2), content, &mut bytes),
            Value::Message(within) => write_content(key(2), &write(within), &mut bytes),
        }
    }
    bytes
}

fn write_content(key: u64, content: &[u8], bytes: &mut Vec<u8>) {
    write_varint(key, bytes);
    write_varint(content.len() as u64, bytes);
    bytes.extend(content);
}

/// Reads seven bits per byte, lowest first; a set highest bit means that more follow.
fn read_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for i in 0..10 {
        let byte = *bytes.split_off_first()?;
        number |= u64::from(byte & 0x7f) << (7 * i);
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

fn write_varint(mut number: u64, bytes: &mut Vec<u8>) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}
