//! A client of the Query API: the senders of MXL flows that a registry knows, and which MXL flows these are.

use std::collections::{BTreeSet, HashMap};
use std::time::{Duration, Instant};

use mxl::Uuid;
use serde_json::Value;

use crate::client::{Client, Error, base};
use crate::resources::FlowIds;
use crate::{CONTROL, GATEWAY, TRANSPORT};

/// Maximum pages of one list: a registry has about a hundred resources on each.
const MAX_PAGES: usize = 200;
/// Maximum resources of one list.
const MAX_RESOURCES: usize = 16_384;
/// Maximum length of one list, in bytes, and maximum time for it.
const MAX_LIST: usize = 32 << 20;
const LIST_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time in which a search for a Query API begins to try another address.
#[cfg(feature = "dns-sd")]
const FIND_TIMEOUT: Duration = Duration::from_secs(12);
/// Maximum time for all questions to Connection APIs, which may be unreachable from here.
const DETAILS_TIMEOUT: Duration = Duration::from_secs(10);

/// A sender of an MXL flow, as a registry and its own Node describe it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteSender {
    /// Its id in IS-04.
    pub id: Uuid,
    /// Its name for people.
    pub label: String,
    /// The media type of its flow; empty if the registry has no such flow.
    pub media_type: String,
    /// Grains or samples a second, as a numerator and a denominator, if the flow says so.
    pub rate: Option<(i64, i64)>,
    /// The name of its Node.
    pub node: String,
    /// Whether it is enabled.
    pub is_active: bool,
    /// Its MXL domain and flow; `None` if its Connection API does not answer, or has none.
    pub domain: Option<Uuid>,
    /// Likewise.
    pub flow: Option<Uuid>,
}

/// A registry's Query API.
#[derive(Debug)]
pub struct Query {
    client: Client,
    api: String,
}

impl Query {
    /// The Query API at `http://HOST:PORT`.
    ///
    /// # Errors
    /// [`Error::Address`]; those of a request; [`Error::Invalid`] if it has none of the versions 1.0 to 1.3.
    pub fn open(url: &str) -> Result<Self, Error> {
        let client = Client::default();
        let api = client.api(&base(url)?, "query")?;
        Ok(Self { client, api })
    }

    /// The first Query API that DNS-SD finds and that answers, or the reason of the last one, after at most 18 seconds,
    /// or soon after `is_over` says that nobody waits for it. `log` gets what a person should know.
    ///
    /// # Errors
    /// [`Error::NotFound`]; those of [`open`](Self::open).
    #[cfg(feature = "dns-sd")]
    pub fn find(
        discovery: &crate::Discovery,
        is_over: &dyn Fn() -> bool,
        log: &mut dyn FnMut(&str),
    ) -> Result<Self, Error> {
        let begin = Instant::now();
        let found = discovery.find(crate::Service::Query, Uuid::new_v4(), is_over);
        found.notes.iter().for_each(|note| log(note));
        let mut last = Error::NotFound;
        for url in found.urls {
            if is_over() || begin.elapsed() > FIND_TIMEOUT {
                break;
            }
            match Self::open(&url) {
                Ok(query) => return Ok(query),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// All resources of a collection, such as `senders`.
    ///
    /// # Errors
    /// Those of a request; [`Error::Invalid`] for an answer that is no list, and for a list of more than 16,384
    /// resources or 32 MiB, or that takes longer than ten seconds.
    pub fn list(&self, collection: &str) -> Result<Vec<Value>, Error> {
        let mut url = format!("{}/{collection}", self.api);
        let (mut found, mut len, begin) = (Vec::new(), 0, Instant::now());
        for _ in 0..MAX_PAGES {
            let reply = self.client.get(&url)?;
            let invalid = |why: &str| Error::Invalid { url: url.clone(), why: why.into() };
            len += reply.len;
            if len > MAX_LIST {
                return Err(invalid("a list of more than 32 MiB"));
            }
            if begin.elapsed() > LIST_TIMEOUT {
                return Err(invalid("the list was not complete after ten seconds"));
            }
            let page = reply.body.as_array().ok_or_else(|| invalid("a list was wanted"))?;
            found.extend(page.iter().cloned());
            if found.len() > MAX_RESOURCES {
                return Err(invalid("more than 16384 resources"));
            }
            // The first page has the newest resources; an empty one ends the list.
            match reply.link.as_deref().and_then(|link| linked(link, "prev")) {
                Some(next) if !page.is_empty() && next != url && next.starts_with("http://") => url = next,
                _ => break,
            }
        }
        // A resource that changes meanwhile is on two pages.
        let mut seen = std::collections::HashSet::new();
        found.retain(|resource| resource["id"].as_str().is_none_or(|id| seen.insert(id.to_owned())));
        Ok(found)
    }

    /// Where mirrors ask for these MXL flows, `mxl://HOST:PORT/`: the gateways whose senders of them are enabled. A
    /// flow may have several.
    ///
    /// # Errors
    /// Those of [`list`](Self::list).
    pub fn gateways(&self, flows: &BTreeSet<Uuid>) -> Result<Vec<(Uuid, String)>, Error> {
        let (senders, devices) = (self.list("senders")?, self.list("devices")?);
        let active: HashMap<&str, &Value> = senders
            .iter()
            .filter(|sender| sender["subscription"]["active"] == true)
            .filter_map(|sender| Some((sender["id"].as_str()?, &sender["device_id"])))
            .collect();
        let mut found = Vec::new();
        for device in &devices {
            let mut controls = device["controls"].as_array().into_iter().flatten();
            let gateway = controls.find(|control| control["type"] == GATEWAY);
            let href = gateway.and_then(|gateway| gateway["href"].as_str());
            let node = device["node_id"].as_str().and_then(|id| Uuid::try_parse(id).ok());
            let (Some(href), Some(node)) = (href, node) else { continue };
            // The id of a gateway's sender follows from the Node and the flow.
            let sends = |flow: &&Uuid| {
                let sender = FlowIds::new(node, **flow).sender.to_string();
                active.get(&*sender).is_some_and(|of| **of == device["id"])
            };
            found.extend(flows.iter().filter(sends).map(|flow| (*flow, href.to_owned())));
        }
        Ok(found)
    }

    /// The senders of MXL flows. Those whose Connection API does not answer within ten seconds in all have neither
    /// domain nor flow.
    ///
    /// # Errors
    /// Those of [`list`](Self::list).
    pub fn senders(&self) -> Result<Vec<RemoteSender>, Error> {
        let by_id = |list: Vec<Value>| -> HashMap<String, Value> {
            list.into_iter().filter_map(|value| Some((value["id"].as_str()?.to_owned(), value))).collect()
        };
        let mut senders = self.list("senders")?;
        senders.retain(|sender| sender["transport"] == TRANSPORT);
        let (flows, sources) = (by_id(self.list("flows")?), by_id(self.list("sources")?));
        let (devices, nodes) = (by_id(self.list("devices")?), by_id(self.list("nodes")?));
        let begin = Instant::now();
        let mut unreachable = std::collections::HashSet::new();
        let mut found = Vec::new();
        for sender in &senders {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let named = |map: &'_ HashMap<String, Value>, id: &Value| map.get(id.as_str()?).cloned();
            let Some(id) = sender["id"].as_str().and_then(|id| Uuid::try_parse(id).ok()) else { continue };
            let flow = named(&flows, &sender["flow_id"]).unwrap_or_default();
            let source = named(&sources, &flow["source_id"]).unwrap_or_default();
            let device = named(&devices, &sender["device_id"]).unwrap_or_default();
            let node = named(&nodes, &device["node_id"]).unwrap_or_default();
            let rates = [&flow["grain_rate"], &flow["sample_rate"], &source["grain_rate"]];
            let control = device["controls"]
                .as_array()
                .into_iter()
                .flatten()
                .find(|control| control["type"] == CONTROL);
            let href = control
                .and_then(|control| control["href"].as_str())
                .unwrap_or_default()
                .trim_end_matches('/');
            let mut route = (None, None);
            let is_asked = href.starts_with("http://") && !unreachable.contains(href);
            if is_asked && begin.elapsed() < DETAILS_TIMEOUT {
                match self.client.get(&format!("{href}/single/senders/{id}/active/")) {
                    Ok(reply) => {
                        let param = |name: &str| {
                            let value = reply.body["transport_params"][0][name].as_str()?;
                            Uuid::try_parse(value).ok()
                        };
                        route = (param("mxl_domain_id"), param("mxl_flow_id"));
                    }
                    Err(Error::Unavailable { .. }) => {
                        unreachable.insert(href.to_owned());
                    }
                    Err(_) => {}
                }
            }
            found.push(RemoteSender {
                id,
                label: text(&sender["label"]),
                media_type: text(&flow["media_type"]),
                rate: rates.into_iter().find_map(rate),
                node: text(&node["label"]),
                is_active: sender["subscription"]["active"].as_bool().unwrap_or_default(),
                domain: route.0,
                flow: route.1,
            });
        }
        found.sort_by(|a, b| (&a.node, &a.label, a.id).cmp(&(&b.node, &b.label, b.id)));
        Ok(found)
    }
}

fn rate(value: &Value) -> Option<(i64, i64)> {
    let numerator = value["numerator"].as_i64()?;
    Some((numerator, value["denominator"].as_i64().unwrap_or(1)))
}

/// The address of a relation in a field `Link` (RFC 8288).
fn linked(link: &str, relation: &str) -> Option<String> {
    link.split(',').find_map(|part| {
        let (address, parameters) = part.trim().strip_prefix('<')?.split_once('>')?;
        let is_it = |parameter: &str| {
            let (name, value) = parameter.trim().split_once('=').unwrap_or_default();
            name == "rel" && value.trim_matches('"') == relation
        };
        parameters.split(';').any(is_it).then(|| address.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_is_found_by_its_relation() {
        let link = "<http://a/q?x=1>; rel=\"next\", <http://a/q?x=2>; rel=\"prev\"";
        assert_eq!(linked(link, "prev").as_deref(), Some("http://a/q?x=2"));
        assert_eq!(linked(link, "first"), None);
        assert_eq!(linked("nonsense", "prev"), None);
    }
}
