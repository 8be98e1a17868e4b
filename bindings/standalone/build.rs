//! How libzklock.so is linked. It has no SONAME here, so that `cc main.c -Ltarget/release -lzklock` runs with a mere
//! `-Wl,-rpath,target/release`; the installed library gets one when it is packaged.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // The library has threads, which dlclose() must not leave without their code.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
