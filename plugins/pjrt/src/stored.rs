//! Programs as bytes that are kept: what the library gave, with what is needed to know whether it still fits, and with a
//! checksum, since libraries run what they load.
//!
//! All numbers are little endian. After the mark come the checksum of all the rest, then the identity of what the program
//! was compiled for, the values that it takes, the types of its outputs, what its data has to be, and the library's bytes.

use devbay_plugin_api::sdk::{BlobUse, DType, Error, Result, ValueType};
use sha2::{Digest, Sha256};

/// Begins every stored program; the digit is the version of this form.
const MARK: &[u8; 16] = b"devbay-pjrt-v2\0\0";

/// Bytes of the checksum.
const CHECK_BYTES: usize = 32;

/// A stored program.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stored {
    /// Target that it was compiled for: library, platform, device.
    pub identity: String,
    /// The values of the graph that it takes.
    pub inputs: Vec<u32>,
    /// Types of what it gives.
    pub outputs: Vec<ValueType>,
    /// Requirements on its data, of which one more result says whether they are met.
    pub checks: Vec<String>,
    /// The library's bytes.
    pub executable: Vec<u8>,
}

impl Stored {
    /// Its bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut rest = Vec::with_capacity(self.executable.len() + 256);
        put_bytes(&mut rest, self.identity.as_bytes());
        put(&mut rest, self.inputs.len() as u64);
        self.inputs.iter().for_each(|&input| put(&mut rest, u64::from(input)));
        put(&mut rest, self.outputs.len() as u64);
        for ty in &self.outputs {
            rest.extend([ty.dtype.code, ty.dtype.bits]);
            rest.extend(ty.dtype.lanes.to_le_bytes());
            put(&mut rest, ty.shape.len() as u64);
            ty.shape.iter().for_each(|&extent| put(&mut rest, extent as u64));
        }
        put(&mut rest, self.checks.len() as u64);
        self.checks.iter().for_each(|words| put_bytes(&mut rest, words.as_bytes()));
        put_bytes(&mut rest, &self.executable);
        let check: [u8; CHECK_BYTES] = Sha256::digest(&rest).into();
        [&MARK[..], &check[..], &rest[..]].concat()
    }

    /// A program of bytes that may be anything.
    ///
    /// # Errors
    /// Unsupported for what [`Stored::to_bytes`] did not make, or is damaged.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let damaged = |what: &str| Error::unsupported(format!("a stored program that {what}"));
        let rest = bytes.strip_prefix(MARK).ok_or_else(|| damaged("is not one of this plugin's"))?;
        let (check, rest) = rest.split_at_checked(CHECK_BYTES).ok_or_else(|| damaged("is cut off"))?;
        if Sha256::digest(rest).as_slice() != check {
            return Err(damaged("is damaged"));
        }
        // Bytes with the checksum were written by `to_bytes`; a mistake in them is found all the same.
        let mut reader = Reader(rest);
        let read = || -> Option<Self> {
            let identity = String::from_utf8(reader.bytes()?.to_vec()).ok()?;
            let n = reader.count()?;
            let inputs = (0..n).map(|_| u32::try_from(reader.number()?).ok()).collect::<Option<_>>()?;
            let n = reader.count()?;
            let outputs = (0..n).map(|_| reader.ty()).collect::<Option<_>>()?;
            let n = reader.count()?;
            let words = |reader: &mut Reader<'_>| String::from_utf8(reader.bytes()?.to_vec()).ok();
            let checks = (0..n).map(|_| words(&mut reader)).collect::<Option<_>>()?;
            let executable = reader.bytes()?.to_vec();
            reader.0.is_empty().then_some(Self { identity, inputs, outputs, checks, executable })
        };
        let mut read = read;
        read().ok_or_else(|| damaged("does not hold together"))
    }

    /// Returns the use of bytes that may be anything to a device of an identity.
    pub fn use_of(bytes: &[u8], identity: &str) -> BlobUse {
        match Self::from_bytes(bytes) {
            Ok(stored) if stored.identity == identity => BlobUse::Usable,
            Ok(_) => BlobUse::Recompile,
            Err(_) => BlobUse::Unsupported,
        }
    }
}

fn put(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(number.to_le_bytes());
}

fn put_bytes(bytes: &mut Vec<u8>, content: &[u8]) {
    put(bytes, content.len() as u64);
    bytes.extend(content);
}

/// Bytes that were not read yet.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    /// A number of things, of which each takes a byte at least.
    fn count(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok().filter(|&n| n <= self.0.len())
    }

    fn bytes(&mut self) -> Option<&'a [u8]> {
        let n = self.count()?;
        self.take(n)
    }

    fn ty(&mut self) -> Option<ValueType> {
        let &[code, bits, low, high] = self.take(4)? else { return None };
        let dtype = DType { code, bits, lanes: u16::from_le_bytes([low, high]) };
        let n = self.count()?;
        let shape = (0..n).map(|_| Some(self.number()? as i64)).collect::<Option<_>>()?;
        Some(ValueType { dtype, shape })
    }
}
