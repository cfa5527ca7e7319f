//! EFA devices, or the error on a host without them.

#[test]
fn a_host_without_efa_devices_says_so() {
    match ibv::efa_contexts() {
        Ok(found) => {
            assert!(!found.is_empty());
            for context in found {
                assert!(context.efa().unwrap().max_send > 0, "{}", context.name());
            }
        }
        Err(error) => {
            let text = error.to_string();
            let known = ["no EFA device", "not installed", "kernel module"];
            assert!(known.iter().any(|known| text.contains(known)), "{text}");
        }
    }
}
