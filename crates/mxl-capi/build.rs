//! Sets the name under which programs find the library, whatever its file is called.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmxl.so.1");
    // Threads of a domain's watcher may still be ending when a program closes the library: its code must stay.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
