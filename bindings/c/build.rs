//! Linker options of libzklock.so. The library in `target` has no SONAME, so a program linked with
//! `-Ltarget/release -lzklock -Wl,-rpath,target/release` finds it there. Packaging adds the SONAME of the installed library.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        // dlclose() must not unload the library, because its threads still execute its code.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
