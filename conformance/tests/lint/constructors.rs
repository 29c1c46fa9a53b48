//! Code that runs when a library is loaded: found if it is reached, and only then.

use crate::Build;

/// A function that needs AVX and stores its results.
const FILL: &str = "static volatile double table[64];\n\
    __attribute__((target(\"avx\"), noinline)) static void fill(void) {\n\
      for (int i = 0; i < 64; i++) table[i] = i * 0.5;\n\
    }\n";

fn with(more: &str) -> Build {
    Build::new().source("a.c", &format!("{FILL}{more}"))
}

const FOUND: &[&str] = &["constructors.instructions"];

#[test]
fn b01_a_constructor_with_avx_is_found() {
    let constructor = "__attribute__((constructor)) static void start(void) { fill(); }\n";
    with(constructor).expect(FOUND, &["DT_INIT_ARRAY[", "(start)", "(AVX)", "fill"]);
    // Relocations may be packed, and constructors may be anonymous.
    with(constructor)
        .arguments(&["-Wl,-z,pack-relative-relocs", "-s"])
        .expect(FOUND, &["DT_INIT_ARRAY[", "(AVX)"]);
}

/// The case of llama.cpp#11780: a C++ file compiled for a newer processor, with a static variable.
#[test]
fn b01_a_static_initialiser_with_avx_is_found() {
    let source = "struct Table { float x[8]; Table() { for (auto &e : x) e = seed() * 0.5f; }\n\
                  static float seed() { static volatile float s = 3; return s; } };\n\
                  static Table table; __attribute__((used)) static float *use() { return table.x; }\n";
    let build = || Build::new().source("a.cpp", source).arguments(&["-fvisibility=hidden"]);
    build().expect(&[], &[]);
    build().arguments(&["-mavx2"]).expect(FOUND, &["_GLOBAL__sub_I", "(AVX"]);
}

#[test]
fn b01_initialisers_of_every_kind_are_entered() {
    with("void _init_here(void) { fill(); }\n")
        .arguments(&["-Wl,-init,_init_here", "-fvisibility=hidden"])
        .expect(FOUND, &["DT_INIT (_init_here)"]);
    let chosen = "static int one(void) { return 1; }\n\
                  static void *choose(void) { fill(); return one; }\n\
                  static int chosen(void) __attribute__((ifunc(\"choose\")));\n\
                  __attribute__((used)) static int call(void) { return chosen(); }\n";
    with(chosen).expect(FOUND, &["an IFUNC resolver (choose)"]);
    // Called through the table of functions, like a symbol that may be replaced.
    let exported = "void start_here(void) { fill(); }\n\
                    __attribute__((constructor)) static void start(void) { start_here(); }\n";
    with(exported)
        .arguments(&["-fsemantic-interposition"])
        .expect(&["exports.extra", "constructors.instructions"], &["start_here"]);
}

#[test]
fn code_that_no_constructor_reaches_is_not_found() {
    with("__attribute__((used)) static void later(void) { fill(); }\n").expect(&[], &[]);
    // The address is taken, but never called.
    with(
        "void (*volatile run)(void); __attribute__((constructor)) static void start(void) { run = fill; }\n",
    )
    .arguments(&["-fvisibility=hidden"])
    .expect(&[], &[]);
}

/// The compiler's own processor check, which is a constructor of its runtime.
#[test]
fn asking_the_processor_is_not_found() {
    let source = "static volatile int has; __attribute__((constructor)) static void start(void) {\n\
                  __builtin_cpu_init(); has = __builtin_cpu_supports(\"avx2\"); }\n";
    Build::new().source("a.c", source).expect(&[], &[]);
}

/// Another function follows a call that does not return.
#[test]
fn code_behind_an_abort_is_not_found() {
    let source = |call: &str| {
        format!(
            "extern void abort(void); extern long labs(long);\n\
             __asm__(\".text\\nstart_here: sub $8, %rsp\\ncall {call}@PLT\\nvzeroall\\nret\\n\"\n\
             \".section .init_array,\\\"aw\\\"\\n.quad start_here\\n.text\\n\");\n\
             __attribute__((used)) static void keep(void) {{ if (labs(1) > 2) abort(); }}\n"
        )
    };
    Build::new().source("a.c", &source("abort")).arguments(&["-s"]).expect(&[], &[]);
    Build::new().source("a.c", &source("labs")).arguments(&["-s"]).expect(FOUND, &["`vzeroall` (AVX)"]);
}
