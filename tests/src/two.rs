//! Providers of two instances of shared memory. An endpoint `fi_shm://NAME` is reached over the second one as
//! `fi_shm://NAME~`.

use std::hash::{Hash, Hasher};
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::Once;

use ofi::raw::{Address, Fabric, Hints, Info, Offers, Provider, Request, Result, Version};
use ofi_core::composite::{Composite, CompositeSpec};
use ofi_core::fabric::FabricCore;
use ofi_core::transport::Transport;
use ofi_shm::{Shm, ShmProvider};

/// The division of peers between the instances.
pub trait Division: Send + Sync + 'static {
    /// The provider's name.
    const NAME: &str;

    /// Whether the endpoint `own` sends to `peer` over the second instance.
    fn is_near(own: &Address, peer: &Address) -> bool;
}

/// Random, and independent for each direction: an end's sends and receives may use different instances. Two names
/// always give the same answer, so that a peer chosen for its path keeps it.
pub struct Turns;

impl Division for Turns {
    const NAME: &str = "crossed";

    fn is_near(own: &Address, peer: &Address) -> bool {
        let mut hasher = std::hash::DefaultHasher::new(); // with keys that are the same in each process
        (own.text(), peer.text()).hash(&mut hasher);
        hasher.finish().is_multiple_of(2)
    }
}

/// By a property that both ends see in their names.
pub struct Halves;

impl Division for Halves {
    const NAME: &str = "halved";

    fn is_near(own: &Address, peer: &Address) -> bool {
        let ones =
            |address: &Address| address.text().map_or(0, |text| text.bytes().map(u8::count_ones).sum());
        (ones(own) + ones(peer)).is_multiple_of(2)
    }
}

/// The pairing.
pub struct Two<D>(PhantomData<D>);

impl<D: Division> CompositeSpec for Two<D> {
    type Near = Shm;
    type Far = Shm;
    type Meeting = Address;

    const FAR_IS_COSTLY: bool = false;
    const FAR_NAME: &'static str = "the far transport";

    fn near_info(info: &Info) -> Option<Info> {
        Some(Info { src_addr: None, dest_addr: None, ..info.clone() })
    }

    fn own_near(_lanes: &<Shm as Transport>::Endpoint, far: &Address) -> Option<Address> {
        Some(Address::from_text(&format!("{}~", far.text()?)))
    }

    fn far_addresses(near: &Address) -> Vec<Address> {
        near.text().and_then(|name| name.strip_suffix('~')).map(Address::from_text).into_iter().collect()
    }

    fn meet(near: &Address) -> Result<Address> {
        Ok(Self::far_addresses(near).remove(0))
    }

    fn near_address(own: &mut Address, far: &Address) -> Option<Address> {
        D::is_near(own, far).then(|| Address::from_text(&format!("{}~", far.text().unwrap_or_default())))
    }
}

/// Offers the infos of provider `shm` under its own name.
struct TwoProvider<D>(PhantomData<D>);

// SAFETY: as for the two providers that it joins.
unsafe impl<D: Division> Provider for TwoProvider<D> {
    fn name(&self) -> &str {
        D::NAME
    }

    fn version(&self) -> Version {
        ShmProvider.version()
    }

    fn offers(&self, request: &Request<'_>) -> Offers {
        let wanted = |hints: &&Hints| ["", D::NAME].contains(&hints.info.fabric_attr.prov_name.as_str());
        let hints = match request.hints {
            Some(hints) if !wanted(&hints) => return Offers::default(),
            hints => hints.map(|hints| hints.clone().provider("shm")),
        };
        let mut offers = ShmProvider.offers(&Request { hints: hints.as_ref(), ..*request });
        for info in &mut offers.infos {
            info.fabric_attr.prov_name = D::NAME.into();
        }
        offers
    }

    fn open_fabric(&self, info: &Info) -> Result<Arc<dyn Fabric>> {
        Ok(FabricCore::<Composite<Two<D>>>::open(info))
    }
}

/// Registers the providers in this process.
pub fn register() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        ofi::register_provider(Arc::new(TwoProvider(PhantomData::<Turns>))).expect("an unused name");
        ofi::register_provider(Arc::new(TwoProvider(PhantomData::<Halves>))).expect("an unused name");
    });
}
