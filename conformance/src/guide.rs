//! The vendor guide's pages with code in Rust, which are compiled and run as documentation tests: here, since they need
//! the SDK and nothing else. What else the guide has is checked by `cli/tests/cli/guide.rs`.

macro_rules! pages {
    ($($name:ident $path:literal)*) => {
        $(
            #[doc = include_str!($path)]
            pub mod $name {}
        )*
    };
}

pages! {
    twelve "../../docs/guide/src/twelve.md"
    streams "../../docs/guide/src/streams.md"
    kernels "../../docs/guide/src/kernels.md"
}
