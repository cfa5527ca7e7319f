//! Gives the shared library the driver's soname, so that a test that has loaded it finds it under the driver's name.

fn main() {
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rerun-if-changed=build.rs");
}
