//! A library's file as the system's loader sees it: segments, the dynamic section, symbols, and what relocations
//! write. Section headers are used for the names of functions alone; a library may have none.
//!
//! Nothing in the file is trusted: every place is checked against the file's length, and what lies outside of it is
//! damage.

use object::read::elf::{Dyn, Dynamic, FileHeader, ProgramHeader, Rela, Sym};
use object::read::{FileKind, ReadRef, StringTable};
use object::{LittleEndian as LE, U16, U64, elf, pod};

type Header = elf::FileHeader64<LE>;

/// One symbol that other libraries see, or that is wanted from them.
#[derive(Clone, Copy)]
pub(super) struct Symbol<'data> {
    pub name: &'data str,
    pub bind: elf::SymbolBind,
    pub kind: elf::SymbolType,
    /// Its address; 0 for one that is wanted.
    pub address: u64,
    pub is_defined: bool,
    /// True if it is bound to a version, which a library that was linked has given it.
    pub is_versioned: bool,
}

/// Where an address lies in the file.
struct FileRange {
    offset: u64,
    /// Bytes from there to the end of what the file has of the segment.
    rest: u64,
    is_code: bool,
}

/// Value that a relocation writes into a slot.
#[derive(Clone, Copy)]
pub(super) enum Target<'data> {
    /// An address in this library.
    Here(u64),
    /// Result of a function of this library; it runs when the library is loaded.
    Resolved(u64),
    /// A symbol of another library.
    Wanted(&'data str),
}

/// Library as the loader sees it.
pub(super) struct Image<'data, R: ReadRef<'data> = &'data [u8]> {
    data: R,
    header: &'data Header,
    segments: &'data [elf::ProgramHeader64<LE>],
    dynamic: Vec<(elf::DynamicTag, u64)>,
    strings: StringTable<'data>,
    symbols: Vec<Symbol<'data>>,
}

impl<'data> Image<'data> {
    /// Reads a library from its bytes.
    ///
    /// # Errors
    /// Words for a file that is no ELF library for x86-64, or that is damaged.
    pub fn of_library(bytes: &'data [u8]) -> Result<Self, String> {
        match FileKind::parse(bytes) {
            Ok(FileKind::Elf64 | FileKind::Elf32) => Self::parse(bytes),
            Ok(FileKind::MachO32 | FileKind::MachO64 | FileKind::MachOFat32 | FileKind::MachOFat64) => {
                Err(not_covered("a Mach-O file"))
            }
            Ok(FileKind::Pe32 | FileKind::Pe64 | FileKind::Coff) => Err(not_covered("a PE file")),
            _ => Err("not a library: it does not begin with an ELF header".to_owned()),
        }
    }
}

/// Entries of the dynamic section that are texts, of those that are looked at.
const TEXTS: &[elf::DynamicTag] = &[elf::DT_NEEDED, elf::DT_SONAME, elf::DT_RPATH, elf::DT_RUNPATH];

/// Bytes at a file's beginning that say what it is for.
pub(super) const IDENT_SIZE: usize = 20;

/// Returns whether a file that begins so is an ELF file for x86-64. EI_CLASS, EI_DATA and e_machine are at the same
/// places in every ELF file (elf(5)).
pub(super) fn is_covered(ident: &[u8]) -> bool {
    ident.len() >= IDENT_SIZE
        && ident.starts_with(&elf::ELFMAG)
        && (ident[4], ident[5]) == (elf::ELFCLASS64.0, elf::ELFDATA2LSB.0)
        && ident[18..20] == elf::EM_X86_64.0.to_le_bytes()
}

fn not_covered(what: &str) -> String {
    format!("{what}, which lint does not cover: it reads ELF libraries for x86-64")
}

fn damaged(what: &str) -> String {
    format!("the file is damaged: {what}")
}

impl<'data, R: ReadRef<'data>> Image<'data, R> {
    /// Reads a library.
    ///
    /// # Errors
    /// As [`Image::of_library`].
    pub fn parse(data: R) -> Result<Self, String> {
        let ident =
            data.read_bytes_at(0, IDENT_SIZE as u64).map_err(|()| damaged("it ends within its header"))?;
        if !is_covered(ident) {
            let bits = if ident[4] == elf::ELFCLASS64.0 { "64" } else { "32" };
            let machine = u16::from_le_bytes([ident[18], ident[19]]);
            return Err(not_covered(&format!("an ELF file of {bits} bits for machine {machine}")));
        }
        let header = Header::parse(data).map_err(|error| damaged(&error.to_string()))?;
        if header.e_type(LE) != elf::ET_DYN {
            return Err("an ELF file, but not a shared library: link it with `-shared`".to_owned());
        }
        let segments = header.program_headers(LE, data).map_err(|error| damaged(&error.to_string()))?;
        let len = data.len().map_err(|()| damaged("it has no length"))?;
        for segment in segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD) {
            let end = segment.p_offset(LE).saturating_add(segment.p_filesz(LE));
            if end > len {
                return Err(damaged(&format!("it is cut off: it has {len} bytes and needs {end}")));
            }
        }
        let mut image = Self {
            data,
            header,
            segments,
            dynamic: Vec::new(),
            strings: StringTable::default(),
            symbols: Vec::new(),
        };
        image.dynamic = image.read_dynamic()?;
        if image.value(elf::DT_FLAGS_1).is_some_and(|flags| flags & elf::DF_1_PIE.0 != 0) {
            return Err("a program, not a shared library: link it with `-shared`".to_owned());
        }
        image.strings = image.read_strings()?;
        for (_, value) in image.dynamic.iter().filter(|(tag, _)| TEXTS.contains(tag)) {
            image.name(*value)?;
        }
        image.symbols = image.read_symbols()?;
        Ok(image)
    }

    fn read_dynamic(&self) -> Result<Vec<(elf::DynamicTag, u64)>, String> {
        let Some(segment) = self.segment(elf::PT_DYNAMIC) else {
            return Err("an ELF file without a dynamic section, which no loader accepts".to_owned());
        };
        let entries = segment.dynamic(LE, self.data).map_err(|error| damaged(&error.to_string()))?;
        let entries = entries.unwrap_or_default().iter().map(|entry| (entry.d_tag(LE), entry.d_val(LE)));
        let entries: Vec<_> = entries.take_while(|(tag, _)| *tag != elf::DT_NULL).collect();
        if entries.is_empty() {
            return Err(
                "an ELF file with an empty dynamic section, which may contain only debug information"
                    .to_owned(),
            );
        }
        Ok(entries)
    }

    fn read_strings(&self) -> Result<StringTable<'data>, String> {
        let (Some(address), Some(size)) = (self.value(elf::DT_STRTAB), self.value(elf::DT_STRSZ)) else {
            return Err(damaged("it has no table of names"));
        };
        let bytes =
            self.bytes(address, size).ok_or_else(|| damaged("its table of names lies outside the file"))?;
        Ok(StringTable::new(bytes, 0, bytes.len() as u64))
    }

    fn read_symbols(&self) -> Result<Vec<Symbol<'data>>, String> {
        let Some(address) = self.value(elf::DT_SYMTAB) else {
            return Ok(Vec::new());
        };
        let n = self.n_symbols(address)?;
        let outside = || damaged("its table of symbols lies outside the file");
        let symbols: &[elf::Sym64<LE>] = self.array(address, n).ok_or_else(outside)?;
        let versions: &[U16<LE>] = match self.value(elf::DT_VERSYM) {
            None => &[],
            Some(address) => self
                .array(address, n)
                .ok_or_else(|| damaged("its table of versions lies outside the file"))?,
        };
        let read = |(i, symbol): (usize, &elf::Sym64<LE>)| {
            let name = self.name(u64::from(symbol.st_name(LE)))?;
            // 0 is local and 1 is without a version; the top bit hides one (VERSYM_HIDDEN).
            let is_versioned = versions.get(i).is_some_and(|version| version.get(LE) & 0x7fff > 1);
            let (bind, kind) = (symbol.st_bind(), symbol.st_type());
            let is_defined = !symbol.is_undefined(LE);
            Ok(Symbol { name, bind, kind, address: symbol.st_value(LE), is_defined, is_versioned })
        };
        symbols.iter().enumerate().map(read).collect()
    }

    /// Counts the table's symbols: the dynamic section does not say, the tables beside it do.
    fn n_symbols(&self, symbols: u64) -> Result<u64, String> {
        if let Some(hash) = self.value(elf::DT_HASH) {
            let counts: &[object::U32<LE>] =
                self.array(hash, 2).ok_or_else(|| damaged("its hash table lies outside the file"))?;
            return Ok(u64::from(counts[1].get(LE)));
        }
        if let Some(hash) = self.value(elf::DT_GNU_HASH) {
            let bytes = self.rest(hash).ok_or_else(|| damaged("its hash table lies outside the file"))?;
            let table = object::read::elf::GnuHashTable::<Header>::parse(LE, bytes)
                .map_err(|error| damaged(&error.to_string()))?;
            if let Some(n) = table.symbol_table_length(LE) {
                return Ok(u64::from(n));
            }
        }
        // A library that exports nothing has an empty hash table. Its symbols end where the next table begins.
        let places = self.dynamic.iter().map(|(tag, val)| Dynamic { tag: *tag, val: *val });
        let next =
            places.filter(|entry| entry.is_address() && entry.val > symbols).map(|entry| entry.val).min();
        Ok(next.map_or(0, |next| (next - symbols) / size_of::<elf::Sym64<LE>>() as u64))
    }

    fn name(&self, offset: u64) -> Result<&'data str, String> {
        let offset = u32::try_from(offset).ok();
        let bytes = offset.and_then(|offset| self.strings.get(offset).ok());
        let name = bytes.and_then(|bytes| std::str::from_utf8(bytes).ok());
        name.ok_or_else(|| damaged("a name lies outside its table, or is not text"))
    }

    /// Returns the symbols that other libraries see.
    pub fn exports(&self) -> impl Iterator<Item = &Symbol<'data>> {
        let is_seen = |symbol: &&Symbol<'_>| symbol.is_defined && symbol.bind != elf::STB_LOCAL;
        self.symbols.iter().filter(is_seen).filter(|symbol| !symbol.name.is_empty())
    }

    /// Returns the symbols that are wanted from other libraries.
    pub fn imports(&self) -> impl Iterator<Item = &Symbol<'data>> {
        self.symbols.iter().filter(|symbol| !symbol.is_defined && !symbol.name.is_empty())
    }

    /// Returns the first segment of a type.
    pub fn segment(&self, kind: elf::ProgramType) -> Option<&'data elf::ProgramHeader64<LE>> {
        self.segments.iter().find(|segment| segment.p_type(LE) == kind)
    }

    /// Returns the value of an entry of the dynamic section.
    pub fn value(&self, tag: elf::DynamicTag) -> Option<u64> {
        self.dynamic.iter().find(|(found, _)| *found == tag).map(|(_, value)| *value)
    }

    /// Returns the texts of all entries of a tag in the dynamic section, one of [`TEXTS`].
    pub fn texts(&self, tag: elf::DynamicTag) -> impl Iterator<Item = &'data str> {
        self.dynamic
            .iter()
            .filter(move |(found, _)| *found == tag)
            .filter_map(|(_, value)| self.name(*value).ok())
    }

    /// Returns the place of an address in the file; None if no segment has it, or it is zero until the program writes.
    fn place(&self, address: u64) -> Option<FileRange> {
        let mut loads = self.segments.iter().filter(|segment| segment.p_type(LE) == elf::PT_LOAD);
        loads.find_map(|segment| {
            let within = address.checked_sub(segment.p_vaddr(LE))?;
            let rest = segment.p_filesz(LE).checked_sub(within).filter(|rest| *rest > 0)?;
            let offset = segment.p_offset(LE).checked_add(within)?;
            Some(FileRange { offset, rest, is_code: segment.p_flags(LE).contains(elf::PF_X) })
        })
    }

    /// Returns the bytes from an address to the end of what the file has there.
    fn rest(&self, address: u64) -> Option<&'data [u8]> {
        let place = self.place(address)?;
        self.data.read_bytes_at(place.offset, place.rest).ok()
    }

    fn bytes(&self, address: u64, size: u64) -> Option<&'data [u8]> {
        let place = self.place(address).filter(|place| size <= place.rest)?;
        self.data.read_bytes_at(place.offset, size).ok()
    }

    fn array<T: pod::Pod>(&self, address: u64, n: u64) -> Option<&'data [T]> {
        let bytes = self.bytes(address, n.checked_mul(size_of::<T>() as u64)?)?;
        pod::slice_from_all_bytes(bytes).ok()
    }

    /// Returns the slots of `DT_INIT_ARRAY`, as they are in the file: address and content.
    ///
    /// # Errors
    /// Words for an array that lies outside of the file.
    pub fn init_array(&self) -> Result<Vec<(u64, u64)>, String> {
        let size = self.value(elf::DT_INIT_ARRAYSZ).unwrap_or_default();
        let (Some(address), 1..) = (self.value(elf::DT_INIT_ARRAY), size / 8) else {
            return Ok(Vec::new());
        };
        let words: Option<&[U64<LE>]> = self.array(address, size / 8);
        let words = words.ok_or_else(|| damaged("its list of constructors lies outside the file"))?;
        let slots = (0..).map(|i: u64| address.wrapping_add(8 * i));
        Ok(slots.zip(words.iter().map(|word| word.get(LE))).collect())
    }

    /// Returns the code at an address, to the end of its segment; None for what is not code.
    pub fn code(&self, address: u64) -> Option<&'data [u8]> {
        let place = self.place(address).filter(|place| place.is_code)?;
        self.data.read_bytes_at(place.offset, place.rest).ok()
    }

    /// Returns the slots that the loader writes and their targets, sorted by the slot's address.
    ///
    /// # Errors
    /// Words for a table that lies outside of the file.
    pub fn targets(&self) -> Result<Vec<(u64, Target<'data>)>, String> {
        let mut targets = Vec::new();
        for (place, size) in [(elf::DT_RELA, elf::DT_RELASZ), (elf::DT_JMPREL, elf::DT_PLTRELSZ)] {
            let n = self.value(size).unwrap_or_default() / size_of::<elf::Rela64<LE>>() as u64;
            let (Some(address), 1..) = (self.value(place), n) else {
                continue;
            };
            let table: Option<&[elf::Rela64<LE>]> = self.array(address, n);
            let table = table.ok_or_else(|| damaged("a table of relocations lies outside the file"))?;
            let written = table.iter().filter_map(|entry| Some((entry.r_offset(LE), self.target(entry)?)));
            targets.extend(written);
        }
        targets.sort_by_key(|(slot, _)| *slot);
        Ok(targets)
    }

    fn target(&self, relocation: &elf::Rela64<LE>) -> Option<Target<'data>> {
        let addend = relocation.r_addend(LE).cast_unsigned();
        match relocation.r_type(LE, false) {
            elf::R_X86_64_RELATIVE => Some(Target::Here(addend)),
            elf::R_X86_64_IRELATIVE => Some(Target::Resolved(addend)),
            kind @ (elf::R_X86_64_64 | elf::R_X86_64_GLOB_DAT | elf::R_X86_64_JUMP_SLOT) => {
                let symbol = self.symbols.get(relocation.r_sym(LE, false) as usize)?;
                let addend = if kind == elf::R_X86_64_64 { addend } else { 0 };
                Some(match symbol {
                    Symbol { is_defined: false, .. } => Target::Wanted(symbol.name),
                    Symbol { kind: elf::STT_GNU_IFUNC, .. } => Target::Resolved(symbol.address),
                    _ => Target::Here(symbol.address.wrapping_add(addend)),
                })
            }
            _ => None,
        }
    }

    /// Addresses and names of functions, sorted, from the exports and, where it was not stripped, the table of all
    /// symbols.
    pub fn functions(&self) -> Vec<(u64, &'data str)> {
        let mut functions: Vec<_> = self
            .exports()
            .filter(|symbol| symbol.kind == elf::STT_FUNC)
            .map(|symbol| (symbol.address, symbol.name))
            .collect();
        let sections = self.header.sections(LE, self.data).ok();
        let table = sections.and_then(|sections| sections.symbols(LE, self.data, elf::SHT_SYMTAB).ok());
        if let Some(table) = table {
            let defined =
                table.iter().filter(|symbol| symbol.st_type() == elf::STT_FUNC && !symbol.is_undefined(LE));
            functions.extend(defined.filter_map(|symbol| {
                let name = table.symbol_name(LE, symbol).ok()?;
                Some((symbol.st_value(LE), std::str::from_utf8(name).ok()?))
            }));
        }
        functions.sort_unstable();
        functions.dedup_by_key(|(address, _)| *address);
        functions
    }
}
