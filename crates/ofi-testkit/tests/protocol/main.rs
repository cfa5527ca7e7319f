//! The protocol of provider `udp` in a simulated network.

mod acks;
mod attacks;
mod document;
mod fairness;
mod hostile;
mod paths;
mod peers;
mod properties;
mod refused;
mod security;
mod sessions;
mod soak;
