//! The rules that the ABI's types hold by themselves: what `v0.rs` says, and the tables made from it.

use devbay_plugin_api::abi::*;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

const FROZEN: [&str; 7] = ["Str", "List", "DType", "BufferRef", "KeyValue", "LayoutField", "NodeClaim"];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// `v0.rs` without its comments and attributes.
fn definitions() -> String {
    let text = read("src/abi/v0.rs");
    let code = |line: &&str| !line.trim_start().starts_with("//") && !line.trim_start().starts_with("#[");
    text.lines().filter(code).collect::<Vec<_>>().join("\n")
}

/// Struct, field and type as `v0.rs` spells them, in its order.
fn fields() -> Vec<(String, String, String)> {
    let mut found = Vec::new();
    for block in definitions().split("pub struct ").skip(1) {
        let (name, body) = block.split_once(" {").expect("a struct has a body");
        let body = body.split("\n}").next().unwrap_or_default();
        for field in body.split("\n    pub ").skip(1) {
            let (field, ty) = field.split_once(':').expect("a field has a type");
            let ty = ty.split_whitespace().collect::<Vec<_>>().join(" ");
            found.push((name.to_owned(), field.to_owned(), ty.trim_end_matches(',').to_owned()));
        }
    }
    assert!(found.len() > 100, "the parser of this test finds {} fields only", found.len());
    found
}

fn layout(name: &str) -> &'static StructLayout {
    LAYOUTS.iter().find(|layout| layout.name == name).unwrap_or_else(|| panic!("no struct {name}"))
}

/// The functions of the table by name, with their types.
fn functions() -> Vec<(String, String)> {
    let table = fields().into_iter().filter(|(owner, ..)| owner == "PluginTable");
    table.filter(|(.., ty)| ty.starts_with("Option<")).map(|(_, name, ty)| (name, ty)).collect()
}

#[test]
fn b04_the_lock_file_is_the_layout_of_this_build() {
    let lock = read("abi.lock");
    let arch = std::env::consts::ARCH;
    let section = lock
        .split("\n[")
        .find_map(|section| section.strip_prefix(&format!("{arch}]\n")))
        .unwrap_or_else(|| panic!("abi.lock has no section [{arch}]: run `cargo xtask header` there"));
    let mut built = String::new();
    for layout in LAYOUTS {
        built += &format!("{} size={} align={}\n", layout.c_name, layout.size, layout.align);
        for field in layout.fields {
            built += &format!("    {:<24} offset={:<4} size={}\n", field.name, field.offset, field.size);
        }
    }
    assert_eq!(
        section.trim_end(),
        built.trim_end(),
        "the layout changed: it may only grow, and the minor rises"
    );
}

/// A section that was not compiled again lacks what is new.
#[test]
fn b04_every_architecture_of_the_lock_has_every_field() {
    let lock = read("abi.lock");
    let names = |text: &str| -> Vec<String> {
        text.lines().skip(1).filter_map(|line| Some(line.split_whitespace().next()?.to_owned())).collect()
    };
    let sections: Vec<Vec<String>> = lock.split("\n[").skip(1).map(names).collect();
    assert!(sections.len() >= 2, "64 and 32 bits");
    for section in &sections {
        assert_eq!(section, &sections[0], "`cargo xtask header` with the target for 32 bits writes it");
    }
}

/// Growth is possible everywhere but on the launch path: the size comes first, and a struct that may grow
/// is never part of another.
#[test]
fn b04_every_struct_is_growable_or_frozen() {
    let mut frozen = Vec::new();
    for layout in LAYOUTS {
        if !layout.growable {
            frozen.push(layout.name);
            continue;
        }
        let head = &layout.fields[0];
        assert_eq!((head.name, head.offset, head.size), ("struct_size", 0, 4), "{}", layout.name);
    }
    assert_eq!(frozen, FROZEN);
    for (owner, field, ty) in fields() {
        let embedded = LAYOUTS.iter().find(|layout| layout.name == ty);
        assert!(embedded.is_none_or(|layout| !layout.growable), "{owner}.{field} embeds {ty}, which grows");
    }
}

/// Unwritten bytes would be read as a field one day.
#[test]
fn b04_structs_have_no_padding() {
    for layout in LAYOUTS {
        let mut end = 0;
        for field in layout.fields {
            assert_eq!(field.offset, end, "a gap before {}.{}", layout.name, field.name);
            end += field.size;
        }
        assert_eq!(layout.size, end, "a gap at the end of {}", layout.name);
    }
}

fn sized(size: usize, fill: u8) -> Vec<u64> {
    // Of u64, so that the bytes are aligned as the struct.
    let mut bytes = vec![u64::from_ne_bytes([fill; 8]); size.div_ceil(8).max(1)];
    state_size(&mut bytes, size as u32);
    bytes
}

/// Writes the first field of a struct.
fn state_size(bytes: &mut [u64], size: u32) {
    bytemuck::cast_slice_mut(bytes)[0] = size;
}

/// Reads a struct of `size` bytes, all of them 1, and gives how many bytes of the result are not zero.
fn bytes_read<T: Growable>(size: usize) -> Result<usize, ListError> {
    let source = sized(size, 1);
    // SAFETY: as many readable bytes as the first field says.
    let value = unsafe { read_struct(source.as_ptr().cast::<T>()) }?;
    // SAFETY: a struct without padding (`b04_structs_have_no_padding`) may be read as bytes.
    let bytes = unsafe { std::slice::from_raw_parts((&raw const value).cast::<u8>(), size_of::<T>()) };
    Ok(bytes[4..].iter().filter(|&&byte| byte == 1).count() + 4)
}

/// Writes into a struct of `size` bytes and gives how many were written; those behind stay as they were.
fn bytes_written<T: Growable>(size: usize) -> usize {
    let mut target = sized(size + 16, 0xee);
    let source = sized(size_of::<T>(), 1);
    state_size(&mut target, size as u32);
    // SAFETY: the vectors hold 16 bytes more than the size that is stated, and a whole struct.
    unsafe { write_struct(target.as_mut_ptr().cast::<T>(), &*source.as_ptr().cast::<T>()).unwrap() };
    let bytes: &[u8] = bytemuck::cast_slice(&target);
    let written = bytes[4..].iter().take_while(|&&byte| byte == 1).count() + 4;
    assert!(bytes[written..].iter().all(|&byte| byte == 0xee), "{}: bytes behind the size", T::NAME);
    written
}

fn check_sizes<T: Growable>() {
    let size = size_of::<T>();
    let name = T::NAME;
    assert_eq!(bytes_read::<T>(size), Ok(size), "{name}, equal");
    // A newer maker: what it has more is not read.
    assert_eq!(bytes_read::<T>(size + 8), Ok(size), "{name}, 8 more");
    assert_eq!(bytes_written::<T>(size + 8), size, "{name}, 8 more");
    // An older maker: what it lacks is zero, and a field that is cut in half is lacking.
    let whole = |limit: usize| T::FIELD_ENDS.iter().copied().filter(|&end| end <= limit).max().unwrap_or(0);
    match size.checked_sub(8).filter(|&smaller| smaller >= T::REQUIRED_SIZE) {
        Some(smaller) => {
            assert_eq!(bytes_read::<T>(smaller), Ok(whole(smaller)), "{name}, 8 fewer");
            assert_eq!(bytes_written::<T>(smaller), whole(smaller), "{name}, 8 fewer");
        }
        None => {
            let too_small = T::REQUIRED_SIZE - 1;
            let error = ListError::StructSize { name, found: too_small, required: T::REQUIRED_SIZE };
            assert_eq!(bytes_read::<T>(too_small), Err(error), "{name}");
        }
    }
    for size in [0, 4, 1 << 30] {
        let head = [size as u32, 0];
        // SAFETY: a size that is refused is read alone.
        let refused = unsafe { read_struct(head.as_ptr().cast::<T>()) };
        let expected_ok = size >= T::REQUIRED_SIZE && size < 1 << 16;
        assert_eq!(refused.is_ok(), expected_ok, "{name} of {size} bytes");
    }
}

#[test]
fn b04_sizes_eight_bytes_either_way_are_accepted() {
    check_sizes::<ErrorDetail>();
    check_sizes::<TraceEvent>();
    check_sizes::<HostApi>();
    check_sizes::<CreateDesc>();
    check_sizes::<MemorySpace>();
    check_sizes::<DeviceInfo>();
    check_sizes::<AllocDesc>();
    check_sizes::<Allocation>();
    check_sizes::<StreamDesc>();
    check_sizes::<CopyDesc>();
    check_sizes::<Tensor>();
    check_sizes::<Attr>();
    check_sizes::<GraphView>();
    check_sizes::<NodeView>();
    check_sizes::<ValueView>();
    check_sizes::<TypeVar>();
    check_sizes::<KernelInfo>();
    check_sizes::<PrepareDesc>();
    check_sizes::<ConstantPack>();
    check_sizes::<Prepared>();
    check_sizes::<MemoryInfo>();
    check_sizes::<KernelCost>();
    check_sizes::<PluginTable>();
    check_sizes::<RecordDesc>();
    check_sizes::<ReplayDesc>();
    check_sizes::<ReplayTable>();
    check_sizes::<DeviceKernel>();
    check_sizes::<NativeHandle>();
    check_sizes::<ExecuteDesc>();
    check_sizes::<ImportDesc>();
    check_sizes::<InteropTable>();
    check_sizes::<CompileDesc>();
    check_sizes::<ExecutableInfo>();
    check_sizes::<CompileTable>();
    check_sizes::<FaultTable>();
    check_sizes::<OptionInfo>();
    check_sizes::<PluginInfo>();
    assert_eq!(LAYOUTS.iter().filter(|layout| layout.growable).count(), 37, "a struct is missing above");
}

#[test]
fn b05_fields_and_arguments_have_fixed_widths() {
    let code = definitions();
    let words: BTreeSet<&str> =
        code.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).collect();
    for forbidden in
        ["bool", "usize", "isize", "enum", "c_int", "c_uint", "c_long", "c_ulong", "size_t", "char"]
    {
        assert!(!words.contains(forbidden), "v0.rs uses {forbidden}, whose width is not fixed");
    }
    let known: BTreeSet<&str> = LAYOUTS.iter().map(|layout| layout.name).collect();
    for (owner, field, ty) in fields() {
        let plain =
            ["u8", "u16", "u32", "u64", "i32", "i64", "f64", "Status", "[u8; 16]"].contains(&ty.as_str());
        let address = ty.starts_with("*const ") || ty.starts_with("*mut ") || ty.starts_with("Option<");
        assert!(plain || address || known.contains(ty.as_str()), "{owner}.{field} is a {ty}");
    }
}

/// An element that grew is read by its stride; what makes no sense is an error and not a read.
#[test]
fn b05_lists_carry_their_stride() {
    let values = [1u32, 99, 2, 99, 3, 99];
    let list = |len, stride| List { ptr: values.as_ptr().cast(), len, stride };
    // SAFETY: three elements, eight bytes apart.
    assert_eq!(unsafe { read_list::<u32>(&list(3, 8), "u32") }, Ok(vec![1, 2, 3]));
    // SAFETY: lists that are refused are not read.
    let refused = |list: List| unsafe { read_list::<u32>(&list, "u32") };
    assert!(matches!(refused(list(3, 3)), Err(ListError::Stride { found: 3, required: 4, .. })));
    assert!(matches!(refused(list(3, 0)), Err(ListError::Stride { found: 0, .. })));
    assert!(matches!(refused(list(3, 1 << 40)), Err(ListError::Stride { .. })));
    assert!(matches!(refused(list(1 << 40, 4)), Err(ListError::TooLong { .. })));
    assert!(matches!(
        refused(List { ptr: std::ptr::null(), len: 1, stride: 4 }),
        Err(ListError::Null { .. })
    ));
    assert_eq!(refused(List::EMPTY), Ok(vec![]));

    // Elements of a newer version, sixteen bytes longer than ours, and of an older one.
    let element = size_of::<OptionInfo>();
    let (stride, n) = (element + 16, 2);
    let mut bytes = vec![0u64; stride * n / 8];
    for i in 0..n {
        let key = Str::new(["first", "second"][i]);
        // SAFETY: within the vector, which is aligned as the struct.
        unsafe {
            let at = bytes.as_mut_ptr().cast::<u8>().add(i * stride).cast::<OptionInfo>();
            at.write(OptionInfo { struct_size: stride as u32, key, ..OptionInfo::empty() });
        }
    }
    let grown = List { ptr: bytes.as_ptr().cast(), len: n as u64, stride: stride as u64 };
    // SAFETY: the list describes the vector.
    let read = unsafe { read_growable_list::<OptionInfo>(&grown) }.unwrap();
    // SAFETY: static texts.
    let keys: Vec<_> = read.iter().map(|option| unsafe { option.key.get() }).collect();
    assert_eq!(keys, [Ok("first"), Ok("second")]);
    // An element that claims to be longer than the distance to the next.
    state_size(&mut bytes, stride as u32 + 8);
    // SAFETY: the list is of bytes of this test; the element is refused before it is read.
    let lying = unsafe { read_growable_list::<OptionInfo>(&grown) };
    assert!(matches!(lying, Err(ListError::Stride { .. })), "{:?}", lying.err());
}

#[test]
fn b05_texts_are_pointer_and_length() {
    // SAFETY: static text, or refused before it is read.
    let get = |text: Str| unsafe { text.get() }.map(str::to_owned);
    assert_eq!(get(Str::new("Grüße")), Ok("Grüße".to_owned()));
    assert_eq!(get(Str { ptr: std::ptr::null(), len: 0 }), Ok(String::new()));
    assert!(matches!(get(Str { ptr: std::ptr::null(), len: 3 }), Err(ListError::Null { .. })));
    assert!(matches!(get(Str { ptr: c"x".as_ptr(), len: 1 << 40 }), Err(ListError::TooLong { .. })));
    assert_eq!(get(Str { ptr: c"\xff\xfe".as_ptr(), len: 2 }), Err(ListError::NotUtf8));
}

#[test]
fn b06_ids_of_extensions_are_apart() {
    let given: Vec<(String, u32)> = constants("DEVBAY_EXTENSION_");
    assert!(given.len() > 15, "the parser of this test finds {} ids only", given.len());
    let ids: BTreeSet<u32> = given.iter().map(|(_, id)| *id).collect();
    assert_eq!(ids.len(), given.len(), "an id was given twice: {given:?}");
    assert!(ids.iter().all(|&id| id != 0 && id < DEVBAY_VENDOR_FIRST), "an id of a vendor's: {given:?}");
}

/// Constants of 32 bits whose names begin so.
fn constants(prefix: &str) -> Vec<(String, u32)> {
    let text = definitions();
    let named = text.lines().filter_map(|line| line.strip_prefix("pub const ")?.strip_suffix(';'));
    let all = named.filter_map(|constant| {
        let (name, rest) = constant.split_once(": ")?;
        let (ty, value) = rest.split_once(" = ")?;
        (ty == "u32" && name.starts_with(prefix)).then(|| (name.to_owned(), value.parse().ok()))
    });
    all.map(|(name, value)| (name, value.expect("a decimal number"))).collect()
}

/// Every flag that changes how a thing must be used stands where an older host looks for what it has to understand, and no
/// bit of a `flags` has two meanings.
#[test]
fn b05_flags_that_must_be_understood_are_in_the_upper_half() {
    let upper = DEVBAY_FLAGS_REQUIRED;
    let required = [
        DEVBAY_DEVICE_INLINE,
        DEVBAY_SPACE_NO_SUBALLOC,
        DEVBAY_SPACE_WRITE_ONCE,
        DEVBAY_SPACE_TYPED,
        DEVBAY_KERNEL_DATA_SHAPE,
    ];
    assert!(required.iter().all(|flag| flag & upper == *flag));
    let text = definitions();
    let mut seen: BTreeMap<(&str, &str), &str> = BTreeMap::new();
    for owner in ["PLUGIN", "DEVICE", "SPACE", "KERNEL", "EXECUTABLE"] {
        let prefix = format!("pub const DEVBAY_{owner}_");
        for line in text.lines().filter(|line| line.starts_with(&prefix) && line.contains(": u64")) {
            let (name, value) = line.split_once(" = ").expect("a constant has a value");
            let other = seen.insert((owner, value), name);
            assert_eq!(other, None, "{name} is {value}, which is taken");
        }
    }
    assert!(seen.len() > 10, "the parser of this test finds {} flags only", seen.len());
    for known in [tables::DEVICE_FLAGS, tables::SPACE_FLAGS, tables::KERNEL_FLAGS] {
        assert_ne!(known & upper, 0);
        assert_eq!(version::not_understood(known, known), 0);
        assert_eq!(version::not_understood(known | 1 << 63, known), 1 << 63);
        assert_eq!(version::not_understood(known | 1 << 31, known), 0);
    }
}

/// Numbers of vendors are given once, and their ranges end before that of experiments.
#[test]
fn b06_vendors_have_numbers_of_their_own() {
    let registry = read("vendors.toml");
    let values = |key: &str| -> Vec<String> {
        let prefix = format!("{key} = ");
        registry.lines().filter_map(|line| Some(line.strip_prefix(&prefix)?.to_owned())).collect()
    };
    let numbers: Vec<u32> = values("number").iter().map(|n| n.parse().expect("a number")).collect();
    assert_eq!(numbers, (0..numbers.len() as u32).collect::<Vec<_>>(), "numbers are given in order");
    let last = DEVBAY_VENDOR_FIRST + numbers.len() as u32 * 0x1_0000;
    assert!(last <= DEVBAY_EXPERIMENTAL_FIRST);
    for key in ["name", "domain", "contact"] {
        let found = values(key);
        assert_eq!(found.len(), numbers.len(), "every vendor has a {key}");
        assert_eq!(found.iter().collect::<BTreeSet<_>>().len(), found.len(), "two vendors of one {key}");
    }
    assert_eq!((DEVBAY_EXPERIMENTAL_FIRST - DEVBAY_VENDOR_FIRST) / 0x1_0000, 12_288);
}

#[test]
fn b07_twelve_functions_are_required_and_come_first() {
    let slots = functions();
    let first: Vec<&str> = slots.iter().take(12).map(|(name, _)| name.as_str()).collect();
    let required: Vec<&str> = REQUIRED_FUNCTIONS.iter().map(|(name, _)| *name).collect();
    assert_eq!(first, required);
    let marked: Vec<&str> = FUNCTIONS.iter().filter(|rule| rule.required).map(|rule| rule.name).collect();
    assert_eq!(marked, required);
    let end = layout("PluginTable").fields.iter().find(|field| field.name == "unprepare").unwrap();
    assert_eq!(PluginTable::REQUIRED_SIZE, end.offset + end.size);
}

#[test]
fn b10_a_buffer_reference_is_frozen() {
    let found: Vec<_> = layout("BufferRef").fields.iter().map(|f| (f.name, f.offset, f.size)).collect();
    assert_eq!(found, [("buffer", 0, 8), ("addr", 8, 8), ("offset", 16, 8), ("length", 24, 8)]);
    let dtype: Vec<_> = layout("DType").fields.iter().map(|f| (f.name, f.offset, f.size)).collect();
    assert_eq!(dtype, [("code", 0, 1), ("bits", 1, 1), ("lanes", 2, 2)], "dlpack.h's DLDataType");
    let codes = [
        DEVBAY_DTYPE_INT,
        DEVBAY_DTYPE_UINT,
        DEVBAY_DTYPE_FLOAT,
        DEVBAY_DTYPE_BFLOAT,
        DEVBAY_DTYPE_COMPLEX,
        DEVBAY_DTYPE_BOOL,
    ];
    assert_eq!(codes, [0, 1, 2, 4, 5, 6], "dlpack.h's DLDataTypeCode");
    assert_eq!(BufferRef::ABSENT.length, 0);
    assert!(BufferRef::ABSENT.buffer.is_null());
}

/// An event is a number on a stream's timeline: there is nothing to create, destroy or allocate.
#[test]
fn b12_events_are_numbers() {
    let types: BTreeMap<String, String> = functions().into_iter().collect();
    assert!(!types.keys().any(|name| name.contains("event")), "an event has functions of its own");
    for name in ["stream_signal", "stream_wait", "stream_on_reached", "stream_host_wait"] {
        assert!(types[name].contains("value: u64"), "{name} takes no point of the timeline");
    }
    assert!(types["stream_reached"].contains("out_value: *mut u64"));
}

/// A stream is described without any native handle; an application's own comes through an extension, which
/// says by a flag that it is there.
#[test]
fn b15_a_stream_is_not_described_by_a_pointer() {
    let desc: Vec<_> = fields().into_iter().filter(|(owner, ..)| owner == "StreamDesc").collect();
    let pointers: Vec<_> = desc.iter().filter(|(.., ty)| ty.starts_with('*')).collect();
    assert!(pointers.is_empty(), "a NULL in {pointers:?} could mean a stream or its absence");
    assert_ne!(extension::INTEROP, 0, "native streams have an extension");
}

#[test]
fn b17_every_function_has_a_threading_class() {
    let slots: Vec<String> = functions().into_iter().map(|(name, _)| name).collect();
    let ruled: Vec<&str> = FUNCTIONS.iter().map(|rule| rule.name).collect();
    assert_eq!(slots, ruled, "tables.rs is stale: run `cargo xtask header`");
    let class = |name: &str| FUNCTIONS.iter().find(|rule| rule.name == name).unwrap().threads;
    assert_eq!(class("create"), ThreadClass::Control);
    assert_eq!(class("copy"), ThreadClass::PerStream);
    assert_eq!(class("stream_reached"), ThreadClass::AnyNeverBlocks);
    assert_eq!(class("stream_host_wait"), ThreadClass::AnyMayBlock);
    assert_eq!(class("prepare"), ThreadClass::Any);
    // In the header each has it in words, and so do the types of functions that are no slot.
    let header = read("include/devbay_plugin.h");
    let table = header.split("struct devbay_plugin_table {").nth(1).unwrap().split("\n};").next().unwrap();
    for name in slots {
        let (before, _) = table.split_once(&format!("(DEVBAY_CALL *{name})(")).expect("the slot is there");
        let comment = &before[before.rfind("/*").unwrap()..];
        for section in ["Owns:", "Threads:", "Order:", "Errors:", "Since:"] {
            assert!(comment.contains(section), "{name} says no `{section}`");
        }
    }
    for function in ["devbay_launch_fn", "devbay_layer_fn", "devbay_query_fn"] {
        let (before, _) =
            header.split_once(&format!("(DEVBAY_CALL *{function})(")).expect("the type is there");
        assert!(before[before.rfind("/*").unwrap()..].contains("Threads:"), "{function} says no `Threads:`");
    }
}

#[test]
fn b18_status_codes_are_canonical() {
    assert_eq!(size_of::<Status>(), 4);
    // As gRPC has them, where it has one.
    let codes = [
        (DEVBAY_STATUS_OK, 0),
        (DEVBAY_STATUS_CANCELLED, 1),
        (DEVBAY_STATUS_UNKNOWN, 2),
        (DEVBAY_STATUS_INVALID, 3),
        (DEVBAY_STATUS_TIMEOUT, 4),
        (DEVBAY_STATUS_NOT_FOUND, 5),
        (DEVBAY_STATUS_OUT_OF_MEMORY, 8),
        (DEVBAY_STATUS_FAILED_PRECONDITION, 9),
        (DEVBAY_STATUS_ABORTED, 10),
        (DEVBAY_STATUS_UNSUPPORTED, 12),
        (DEVBAY_STATUS_INTERNAL, 13),
        (DEVBAY_STATUS_UNAVAILABLE, 14),
        (DEVBAY_STATUS_DATA_LOSS, 15),
        (DEVBAY_STATUS_DEVICE_LOST, 64),
        (DEVBAY_STATUS_PANICKED, 65),
    ];
    for (found, expected) in codes {
        assert_eq!(found, expected);
    }
    assert_eq!(read("src/abi/v0.rs").matches("pub const DEVBAY_STATUS_").count(), codes.len());
    // Whatever may fail says so by a status; the others take something back, or answer NULL.
    for (name, ty) in functions() {
        let silent = ["destroy", "buffer_free", "stream_destroy", "unprepare", "get_extension"];
        assert_eq!(ty.contains("-> Status"), !silent.contains(&name.as_str()), "{name}");
    }
}

#[test]
fn b20_a_kernel_is_described_without_a_device() {
    for owner in ["PluginInfo", "KernelInfo", "TypeVar"] {
        for (_, field, ty) in fields().into_iter().filter(|(of, ..)| of == owner) {
            let needs_device = ["Device", "Instance", "Option<"].iter().any(|word| ty.contains(word));
            // A layer describes no kernel.
            assert!(!needs_device || field == "layer", "{owner}.{field} is a {ty}");
        }
    }
}

/// Enqueued arguments could be sent to another process: handles, numbers, and the host spans of a copy.
#[test]
fn b24_asynchronous_arguments_hold_no_pointers_but_host_spans() {
    let addresses = |owner: &str| -> Vec<String> {
        let of = fields().into_iter().filter(|(name, ..)| name == owner);
        let address = |ty: &str| ty.starts_with('*') && ty != "*mut Buffer" || ty == "Str" || ty == "List";
        of.filter(|(.., ty)| address(ty)).map(|(_, field, _)| field).collect()
    };
    assert_eq!(addresses("CopyDesc"), ["host_src", "host_dst"]);
    assert_eq!(addresses("BufferRef"), Vec::<String>::new());
    // What else is enqueued takes the stream and numbers; a result is the status alone.
    let types: BTreeMap<String, String> = functions().into_iter().collect();
    for rule in FUNCTIONS.iter().filter(|rule| rule.threads == ThreadClass::PerStream) {
        let arguments = types[rule.name].split_once('(').unwrap().1;
        for pointer in arguments.split('*').skip(1) {
            let allowed = ["mut Stream", "const CopyDesc"].iter().any(|ty| pointer.starts_with(ty));
            assert!(allowed, "{} takes a pointer: *{pointer}", rule.name);
        }
    }
}
