//! Gives the shared library the name of the driver's, so that a test that has loaded it finds it under that name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
