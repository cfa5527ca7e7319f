//! How serde reads and writes addresses: C's number of the format, then the bytes. Every address survives the round
//! trip.

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{AddrFormat, Address};

impl Serialize for Address {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.format().as_c(), self.bytes()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Address {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (number, bytes) = <(u32, Vec<u8>)>::deserialize(deserializer)?;
        let format = AddrFormat::from_c(number);
        let format = format.ok_or_else(|| D::Error::custom(format!("{number} is not an address format")))?;
        Ok(Address::new(format, &bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_comes_back_and_unknown_formats_are_refused() {
        let addresses = ["fi_sockaddr_in://10.0.0.1:7", "fi_sockaddr_in6://[fe80::1]:7", "fi_shm://somebody"]
            .map(|text| text.parse().unwrap());
        for address in addresses.into_iter().chain([Address::new(AddrFormat::Efa, &[7; 32])]) {
            let text = serde_json::to_string(&address).unwrap();
            assert_eq!(serde_json::from_str::<Address>(&text).unwrap(), address, "{text}");
        }
        assert!(serde_json::from_str::<Address>("[4000000, [1]]").is_err());
    }
}
