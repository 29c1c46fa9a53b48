//! The contract between devbay and its device plugins.
//!
//! A vendor ships one shared library. A host loads it, asks [`abi::QueryFn`] for its description, agrees on a
//! minor version and drives it through one table of functions. This crate holds that contract and nothing
//! else. [`abi`] is its one definition, from which `include/devbay_plugin.h`, `abi.lock` and the layout
//! tables are generated (`cargo xtask header`). [`sdk`] is a safe way to implement it in Rust. [`reserve`] is
//! how both sides allocate memory whose size they do not decide.
//!
//! # The rules
//!
//! Rules are cited by number in code, tests and reports. `docs/abi-rules.md` has each with its reason, the
//! code that enforces it and the test that would fail without it.
//!
//! | rule | requirement | where it is enforced |
//! | --- | --- | --- |
//! | B1 | one exported symbol, named after the major; pure, repeatable | [`abi::QueryFn`] |
//! | B2 | a plugin imports nothing from the host; services come in a table | [`abi::HostApi`] |
//! | B3 | both sides state a range of minors; the highest common one is used | [`abi::version`] |
//! | B4 | structs off the launch path start with `struct_size` and only grow | [`abi::Growable`] |
//! | B5 | fixed-width integers; unknown codes tolerated; lists carry a stride | [`abi::List`] |
//! | B6 | extensions by id, unknown gives NULL | [`abi::extension`] |
//! | B7 | twelve required functions | [`abi::REQUIRED_FUNCTIONS`] |
//! | B9 | the creator frees; a launch borrows until its point is reached | [`abi::PluginTable`] |
//! | B10 | a buffer reference is handle, address, offset, length | [`abi::BufferRef`] |
//! | B11 | memory spaces are enumerated, with flags and limits | [`abi::MemorySpace`] |
//! | B12 | an event is a point on a stream's timeline | [`abi::PluginTable::stream_signal`] |
//! | B13 | failure is in band and sticky | [`abi::PluginTable::stream_reached`] |
//! | B14 | asynchronous functions take a stream; inline devices say so once | [`abi::DEVBAY_DEVICE_INLINE`] |
//! | B15 | NULL is a valid native stream | [`abi::StreamDesc`] |
//! | B16 | callbacks come exactly once, and call no plugin | [`abi::DoneFn`] |
//! | B17 | every function states its threading class, also as data | [`abi::FUNCTIONS`] |
//! | B18 | one `i32` status; detail through a caller's buffer | [`abi::ErrorDetail`] |
//! | B19 | nothing unwinds across the boundary | [`sdk`] |
//! | B20 | kernels are a static table, listed without a device | [`abi::KernelInfo`] |
//! | B21 | prepare once, launch many; a launch checks only its data | [`abi::LaunchFn`] |
//! | B24 | no pointer in asynchronous arguments except declared host spans | [`abi::CopyDesc`] |
//! | B25-B27, B29 | discovery, loading, probing, selection | crate `devbay-host` |
//! | B30 | layouts as data explain a failed negotiation | [`abi::LayoutField`] |

pub mod abi;
#[doc(hidden)]
pub mod locks;
pub mod reserve;
pub mod sdk;
#[cfg(feature = "texts")]
pub mod texts;
