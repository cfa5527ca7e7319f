//! The open fabrics and domains of this process: getinfo returns the first of each name (fi_fabric(3), fi_domain(3)),
//! and hints may require a particular one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ofi_api::{Domain, Fabric, Handle, Info, Refusal};

use crate::fork::Born;

struct OpenedObject {
    provider: String,
    /// Of the fabric or the domain.
    name: String,
    handle: Handle,
    born: Born,
}

#[derive(Default)]
struct All {
    fabrics: Vec<OpenedObject>,
    domains: Vec<OpenedObject>,
}

fn all() -> MutexGuard<'static, All> {
    static ALL: Mutex<All> = Mutex::new(All { fabrics: Vec::new(), domains: Vec::new() });
    ALL.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add(list: &mut Vec<OpenedObject>, provider: &str, name: &str, handle: Handle) {
    list.retain(|opened| opened.handle.is_open() && opened.born.is_here());
    list.push(OpenedObject { provider: provider.into(), name: name.into(), handle, born: Born::here() });
}

/// Records a fabric while it is open.
pub fn fabric(provider: &str, fabric: &Arc<dyn Fabric>) {
    add(&mut all().fabrics, provider, fabric.name(), Handle::of_fabric(fabric));
}

/// Records a domain while it is open.
pub fn domain(provider: &str, domain: &Arc<dyn Domain>) {
    add(&mut all().domains, provider, domain.name(), Handle::of_domain(domain));
}

/// The first that is open.
fn first(list: &[OpenedObject], provider: &str, name: &str) -> Option<Handle> {
    let mut open = list.iter().filter(|opened| opened.handle.is_open() && opened.born.is_here());
    open.find(|opened| opened.provider == provider && opened.name == name).map(|opened| opened.handle.clone())
}

/// Whether the hints name a different one.
fn is_other(list: &[OpenedObject], wanted: Option<&Handle>, provider: &str, name: &str) -> bool {
    let named = list.iter().find(|opened| Some(&opened.handle) == wanted && opened.handle.is_open());
    named.is_some_and(|named| (&*named.provider, &*named.name) != (provider, name))
}

/// Adds the open objects of its names to an offer, unless it already has the objects that the hints named.
///
/// # Errors
/// The refusal, if the hints named an open object that does not match this offer.
pub fn complete(info: &mut Info) -> Result<(), Refusal> {
    let all = all();
    let provider = info.fabric_attr.prov_name.clone();
    let refused = |field, offered: &str| Refusal {
        provider: provider.clone(),
        field,
        wanted: "another one, which is open".into(),
        offered: offered.into(),
    };
    let (fabric, domain) = (&mut info.fabric_attr, &mut info.domain_attr);
    if is_other(&all.fabrics, fabric.fabric.as_ref(), &provider, &fabric.name) {
        return Err(refused("fabric_attr.fabric", &fabric.name));
    }
    if is_other(&all.domains, domain.domain.as_ref(), &provider, &domain.name) {
        return Err(refused("domain_attr.domain", &domain.name));
    }
    // A handle of another kind, or of a closed object, belongs to the program and stays.
    if fabric.fabric.as_ref().is_none_or(|handle| !handle.is_open()) {
        fabric.fabric = first(&all.fabrics, &provider, &fabric.name);
    }
    if domain.domain.as_ref().is_none_or(|handle| !handle.is_open()) {
        domain.domain = first(&all.domains, &provider, &domain.name);
    }
    Ok(())
}
