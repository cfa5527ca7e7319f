//! Provider `efa`: reliable datagram endpoints over the SRD queue pairs of Amazon's Elastic Fabric Adapter.

pub mod wire;
