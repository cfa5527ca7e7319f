#![no_main]
libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    ofi_fuzz::tcp_first(input);
});
