//! Decoding takes at most a bounded multiple of a file's size: tested for every repeated ONNX message, empty, which gives
//! the smallest file for the most memory.
//!
//! The decoder (prost) allocates in its own way, which cannot be refused. So the memory that a file can make it request is
//! bounded, and `docs/memory.md` gives the bound.

use super::allocator::peak;
use super::{alone, runtime};
use devbay_host::internals::import;

/// Maximum bytes of memory per byte of a file. An empty message is two bytes in the file; its struct has a few hundred
/// bytes, and the list doubles as it grows, copying its content.
const TIMES: i64 = 1024;

/// Number of messages of a kind.
const N: usize = 20_000;

/// Returns a length-delimited field.
fn field(number: u32, content: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for mut n in [u64::from(number << 3 | 2), content.len() as u64] {
        while n >= 0x80 {
            bytes.push(n as u8 | 0x80);
            n >>= 7;
        }
        bytes.push(n as u8);
    }
    bytes.extend_from_slice(content);
    bytes
}

/// A path of field numbers from the model to a repeated field, and its name.
const REPEATED: &[(&[u32], &str)] = &[
    (&[8], "imports of opsets"),
    (&[14], "metadata"),
    (&[20], "training"),
    (&[25], "functions"),
    (&[7, 1], "nodes"),
    (&[7, 5], "constants"),
    (&[7, 11], "inputs"),
    (&[7, 12], "outputs"),
    (&[7, 13], "types of values"),
    (&[7, 14], "quantisation"),
    (&[7, 15], "sparse constants"),
    (&[7, 1, 1], "names of inputs"),
    (&[7, 1, 5], "attributes"),
    (&[7, 1, 5, 9], "strings"),
    (&[7, 1, 5, 10], "tensors of an attribute"),
    (&[7, 1, 5, 11], "graphs of an attribute"),
    (&[7, 1, 5, 15], "types of an attribute"),
    (&[7, 5, 6], "strings of a constant"),
    (&[7, 5, 13], "places of data"),
    (&[25, 7], "nodes of a function"),
    (&[25, 11], "attributes of a function"),
];

#[test]
fn files_of_empty_messages_take_a_bounded_multiple() {
    let _alone = alone();
    let _runtime = runtime();
    let mut most = (0, "");
    for (path, what) in REPEATED {
        let (&last, outer) = path.split_last().expect("a path");
        let mut bytes = field(last, &[]).repeat(N);
        for &number in outer.iter().rev() {
            bytes = field(number, &bytes);
        }
        let len = bytes.len() as i64;
        // It need not be a valid model.
        let (_, found) = peak(|| import::from_bytes(bytes, None).map(drop));
        most = most.max((found / len, what));
        assert!(found <= TIMES * len, "{what}: {found} bytes for {len} of the file");
    }
    eprintln!("{} bytes for a byte of the file, {}", most.0, most.1);
}

/// Numbers in packed lists take one byte in the file and eight in memory.
#[test]
fn packed_numbers_take_a_bounded_multiple() {
    let _alone = alone();
    for number in [4, 5, 7, 10, 11] {
        let bytes = field(7, &field(5, &field(number, &[0; 8 * N])));
        let len = bytes.len() as i64;
        let (_, found) = peak(|| import::from_bytes(bytes, None).map(drop));
        assert!(found <= 32 * len, "field {number}: {found} bytes for {len} of the file");
    }
}
