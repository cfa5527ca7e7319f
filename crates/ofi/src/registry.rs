//! The providers of the process, and getinfo over all of them.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use ofi_api::{
    Caps, Errno, Error, Fabric, GetinfoFlags, Hints, Info, MrMode, Provider, Refusal, Request, Result,
    Version,
};
use ofi_core::config::{self, PROVIDER, PROVIDER_PATH};
use ofi_core::log::{Level as LogLevel, Started as LogStarted};
use ofi_core::provider_filter::{ProviderFilter, check_version};

use crate::alias::Aliases;
use crate::{layers, missing, profile};

/// The providers of this process, in the order in which getinfo asks them.
fn providers() -> &'static Mutex<Vec<Arc<dyn Provider>>> {
    static PROVIDERS: OnceLock<Mutex<Vec<Arc<dyn Provider>>>> = OnceLock::new();
    PROVIDERS.get_or_init(|| {
        config::register(config::SETTINGS);
        config::register(ofi_core::settings::SETTINGS);
        Mutex::new(vec![
            // An adapter is faster than sockets; shared memory is faster than either.
            #[cfg(feature = "shm")]
            {
                config::register(ofi_shm::SETTINGS);
                Arc::new(ofi_shm::ShmProvider) as Arc<dyn Provider>
            },
            #[cfg(feature = "efa")]
            {
                config::register(ofi_efa::SETTINGS);
                Arc::new(ofi_efa::EfaProvider)
            },
            #[cfg(feature = "verbs")]
            {
                config::register(ofi_verbs::SETTINGS);
                Arc::new(ofi_verbs::VerbsProvider)
            },
            #[cfg(feature = "udp")]
            {
                config::register(ofi_udp::SETTINGS);
                Arc::new(ofi_udp::UdpProvider)
            },
            // After udp, which shares memory with its neighbours: a program that names no provider gets that.
            #[cfg(feature = "tcp")]
            {
                config::register(ofi_tcp::SETTINGS);
                Arc::new(ofi_tcp::TcpProvider)
            },
        ])
    })
}

/// Prints this library's `tracing` events as libfabric prints its log, at the level that `FI_LOG_LEVEL` names (`warn`,
/// `info`, `debug`; `off` for nothing; `warn` if it is not set), to standard error or to the target that
/// `FI_LOG_LOCATION` names. Call it in the `main` of a program that has no subscriber; libraries should leave that to
/// the program. Later calls have no effect.
///
/// ```
/// ofi::log_from_env(); // FI_LOG_LEVEL=info shows why a provider is refused
/// let node: ofi::Node = ofi::Node::open(&ofi::Hints::new())?;
/// # drop(node);
/// # Ok::<(), ofi::Error>(())
/// ```
pub fn log_from_env() -> LogStarted {
    log_from_env_or(Some(LogLevel::Warn))
}

/// [`log_from_env`] with another default level (`None`: nothing is logged), for a library whose host program has a log
/// level of its own.
pub fn log_from_env_or(otherwise: Option<LogLevel>) -> LogStarted {
    let _ = providers(); // so that invalid settings are logged first
    let started = ofi_core::log::start(otherwise);
    if started == LogStarted::Logging {
        warn_of_unknown_providers();
    }
    started
}

/// The subscriber of [`log_from_env`], for a library whose own subscriber passes our events on to it. `None` if
/// `FI_LOG_LEVEL` is not set, or `off`.
pub fn log_subscriber() -> Option<impl tracing::Subscriber + Send + Sync + 'static> {
    let filter = ofi_core::log::Filter::from_env(None)?;
    Some(ofi_core::log::logger(filter).0)
}

/// Logs the settings that are set, and those whose values are invalid: the first lines of [`log_from_env`], for a
/// program or library with its own subscriber.
pub fn log_settings() {
    let _ = providers();
    ofi_core::log::announce(None);
    warn_of_unknown_providers();
}

/// Logs the names in `FI_PROVIDER` and `FI_LOG_PROV` that no provider has. Does nothing if plug-ins may be loaded
/// later: they may have any name.
fn warn_of_unknown_providers() {
    if !PROVIDER_PATH.get().is_empty() {
        return;
    }
    let aliases = Aliases::from_env();
    let mut known: Vec<String> = provider_names().into_iter().map(|(name, _)| name).collect();
    let own = known.clone();
    known.extend(missing::left_out().map(str::to_owned));
    let check = |setting: &config::Setting<&'static str>, more: &[&str], aliased: bool| {
        let value = setting.get();
        for name in config::NameFilter::parse(&value.replace(';', ",")).names() {
            // Names of libfabric's layers, as in `tcp;ofi_rxm`, accompany a provider's name.
            let is_known = known.iter().any(|known| known.eq_ignore_ascii_case(name))
                || more.contains(&name)
                || (aliased && (aliases.provider_of(name).is_some() || name.starts_with("ofi_")));
            if !is_known {
                let names: Vec<&str> = own.iter().map(String::as_str).chain(more.iter().copied()).collect();
                let advice = match aliased {
                    true => format!("; FI_PROVIDER_ALIAS={name}=udp gives that name to udp"),
                    false => String::new(),
                };
                tracing::warn!(
                    target: "ofi::core::core",
                    unfiltered = true,
                    "{}={value} names no provider of this library: {name}; the names are {}{advice}",
                    config::AnySetting::env(setting),
                    names.join(", ")
                );
            }
        }
    };
    for (alias, provider) in aliases.all() {
        if !known.iter().any(|known| known.eq_ignore_ascii_case(provider)) {
            tracing::warn!(
                target: "ofi::core::core",
                unfiltered = true,
                "FI_PROVIDER_ALIAS: {alias}={provider} names no provider of this library: {provider}; the names are {}",
                own.join(", ")
            );
        }
    }
    check(&PROVIDER, &[], true);
    check(&config::LOG_PROV, &["core", "rdm", "mxl", "multirail", "nixl"], false);
}

/// Returns all settings, after registering the providers, which register theirs.
pub(crate) fn settings() -> Vec<config::Listed> {
    let _ = providers();
    config::list()
}

fn snapshot() -> Vec<Arc<dyn Provider>> {
    providers().lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Adds a provider of the application, which getinfo tries after all others.
///
/// # Errors
/// `FI_EALREADY` if a provider of that name exists.
pub fn register_provider(provider: Arc<dyn Provider>) -> Result<()> {
    let mut all = providers().lock().unwrap_or_else(PoisonError::into_inner);
    if all.iter().any(|other| other.name() == provider.name()) {
        return Err(Error::wanted(
            Errno::EALREADY,
            "the name of a provider",
            "one that no other provider has",
            provider.name(),
            "choose another name",
        ));
    }
    all.push(provider);
    Ok(())
}

/// Names and versions of all providers, regardless of `FI_PROVIDER`.
pub fn provider_names() -> Vec<(String, Version)> {
    snapshot().iter().map(|provider| (provider.name().to_string(), provider.version())).collect()
}

/// The usable offers, best first, and the reasons against all others: the output of `fi_info --explain`.
///
/// # Errors
/// `FI_ENOSYS` for a version newer than this library's.
pub fn explain(request: &Request<'_>) -> Result<ofi_api::Offers> {
    collect(request, None, &|provider, request| provider.offers(request))
}

/// The function that asks a provider.
type Ask<'a> = &'a dyn Fn(&dyn Provider, &Request<'_>) -> ofi_api::Offers;

/// Collects the offers of all providers, or only of `only`, regardless of the settings.
fn collect(request: &Request<'_>, only: Option<&str>, ask: Ask<'_>) -> Result<ofi_api::Offers> {
    check_version(request.version)?;
    let (filter, mut aliases) = match only {
        Some(_) => Default::default(),
        None => (ProviderFilter::parse(&PROVIDER.get()), Aliases::from_env()),
    };
    let wanted = request.hints.map_or("", |hints| hints.info.fabric_attr.prov_name.as_str());
    let mut all = ofi_api::Offers::default();
    // First: if the user names a provider that is not built in, the refusals of the others do not matter.
    all.refusals.extend(missing::refusals(wanted, &PROVIDER.get()));
    let providers = snapshot();
    let setting = if only.is_some() { String::new() } else { PROVIDER.get().to_string() };
    all.refusals.extend(layers::resolve(wanted, &setting, &providers, &mut aliases));
    if only.is_none() {
        all.refusals.extend(missing::strangers(wanted, &setting, |name| {
            let is_ours = providers.iter().any(|provider| provider.name().eq_ignore_ascii_case(name));
            let is_left_out = missing::left_out().any(|left_out| left_out.eq_ignore_ascii_case(name));
            is_ours || is_left_out || aliases.provider_of(name).is_some()
        }));
    }
    for provider in providers {
        let own = provider.name();
        if only.is_some_and(|only| only != own) {
            continue;
        }
        // Its name is an alias of another provider (`FI_PROVIDER_ALIAS=tcp=udp`), so it cannot be selected.
        if aliases.provider_of(own).is_some() {
            continue;
        }
        // If `udp` is refused because packets cannot be protected, an unprotected provider must not take its place,
        // unless the program names it.
        let is_unprotected = |refusal: &Refusal| {
            refusal.provider == "udp" && matches!(refusal.field, "environment" | "encryption")
        };
        if own == "tcp" && wanted.is_empty() && all.refusals.iter().any(is_unprotected) {
            continue;
        }
        if request.flags.contains(GetinfoFlags::PROV_ATTR_ONLY) {
            for name in std::iter::once(own).chain(aliases.of(own)) {
                list(provider.as_ref(), name, wanted, &filter, &mut all);
            }
            continue;
        }
        let named = aliases.of(own).find(|alias| wanted.eq_ignore_ascii_case(alias));
        if named.is_none() {
            if filter.may_ask(own) {
                let mut offers = ask(provider.as_ref(), request);
                log_offers(own, &offers);
                offers.infos.retain(|info| filter.may_return(&info.fabric_attr.prov_name));
                take(offers, &mut all);
            } else {
                all.refusals.push(refused_by_setting(own));
            }
        }
        // Offer it under its aliases too, for programs that request one of them and for programs that name no provider.
        let may_be = |alias: &&str| match named {
            Some(named) => *alias == named && (filter.may_ask(alias) || filter.may_ask(own)),
            None => wanted.is_empty() && filter.may_ask(alias),
        };
        for alias in aliases.of(own).filter(may_be) {
            take(offers_as(alias, provider.as_ref(), request, ask), &mut all);
        }
    }
    Ok(all)
}

/// Logs a provider's offers, or its refusals.
fn log_offers(prov: &str, offers: &ofi_api::Offers) {
    if !tracing::enabled!(target: "ofi::core::core", tracing::Level::INFO) {
        return;
    }
    let mut places: Vec<&str> = offers.infos.iter().map(|info| info.domain_attr.name.as_str()).collect();
    places.sort_unstable();
    places.dedup();
    if !offers.infos.is_empty() {
        let (count, domains) = (offers.infos.len(), places.join(", "));
        tracing::info!(target: "ofi::core::core", prov, count, domains, "the provider offers infos");
    }
    for refusal in &offers.refusals {
        tracing::info!(target: "ofi::core::core", prov, "the provider refuses: {refusal}");
    }
}

/// The offers of a provider under another name.
fn offers_as(alias: &str, provider: &dyn Provider, request: &Request<'_>, ask: Ask<'_>) -> ofi_api::Offers {
    let translated = request.hints.map(|hints| profile::translated(hints, alias, provider.name()));
    let mut offers = ask(provider, &Request { hints: translated.as_ref(), ..*request });
    for info in std::mem::take(&mut offers.infos) {
        match profile::dressed(info, alias, request.hints) {
            Ok(info) => offers.infos.push(info),
            Err(refusal) => offers.refusals.push(refusal),
        }
    }
    offers
}

/// Adds offers to an answer, with any objects of theirs that are already open.
fn take(offers: ofi_api::Offers, all: &mut ofi_api::Offers) {
    for mut info in offers.infos {
        match ofi_core::opened::complete(&mut info) {
            Ok(()) => all.infos.push(info),
            Err(refusal) => all.refusals.push(refusal),
        }
    }
    all.refusals.extend(offers.refusals);
}

fn refused_by_setting(name: &str) -> Refusal {
    let (wanted, offered) = (PROVIDER.get().to_string(), name.to_string());
    Refusal { provider: name.to_string(), field: "FI_PROVIDER", wanted, offered }
}

/// Lists a provider without its properties (`FI_PROV_ATTR_ONLY`).
fn list(
    provider: &dyn Provider,
    name: &str,
    wanted: &str,
    filter: &ProviderFilter,
    all: &mut ofi_api::Offers,
) {
    if !filter.may_ask(name) {
        return all.refusals.push(refused_by_setting(name));
    }
    if !name.eq_ignore_ascii_case(wanted) && !ProviderFilter::parse(&wanted.replace(';', ",")).may_ask(name) {
        return all.refusals.push(Refusal {
            provider: name.to_string(),
            field: "fabric_attr.prov_name",
            wanted: wanted.to_string(),
            offered: name.to_string(),
        });
    }
    let mut info = Info::default();
    (info.fabric_attr.prov_name, info.fabric_attr.prov_version) = (name.to_string(), provider.version());
    all.infos.push(info);
}

/// `fi_getinfo`: the offers of this host that satisfy `hints`, best first.
///
/// # Errors
/// `FI_ENODATA` if no offer does, with a refusal for each obstacle; `FI_ENOSYS` for a version newer than this
/// library's.
pub fn getinfo(
    version: Version,
    node: Option<&str>,
    service: Option<&str>,
    flags: GetinfoFlags,
    hints: Option<&Hints>,
) -> Result<Vec<Info>> {
    found(explain(&Request { version, node, service, flags, hints })?)
}

/// [`getinfo`] for C programs. If the hints leave the choice, it first asks a provider for offers without
/// `FI_MR_PROV_KEY` and `FI_MR_VIRT_ADDR`. In an info these bits mean that the provider needs them (fi_mr(3)), which is
/// not the case here. C's own software providers leave them out, so some programs ignore them. The drawback is that the
/// keys of such a program can be guessed. Providers whose devices have keys ([`Provider::has_device_keys`]) are asked
/// without this change: C's providers need both bits there, and device access would not work without them. If the hints
/// have `FI_RMA_EVENT`, such providers are asked like all others: a device reports no accesses, so the owner executes
/// every one anyway.
///
/// # Errors
/// As [`getinfo`].
pub fn getinfo_asking_least(request: &Request<'_>) -> Result<Vec<Info>> {
    ask_least(request, None)
}

/// [`getinfo_asking_least`] of one provider, for a host program that selects providers itself. The settings that name
/// or select providers do not apply.
///
/// # Errors
/// As [`getinfo`].
pub fn getinfo_of(provider: &str, request: &Request<'_>) -> Result<Vec<Info>> {
    ask_least(request, Some(provider))
}

fn ask_least(request: &Request<'_>, only: Option<&str>) -> Result<Vec<Info>> {
    let needless = MrMode::VIRT_ADDR | MrMode::PROV_KEY;
    let choice = request.hints.filter(|hints| {
        let allowed = hints.info.domain_attr.mr_mode;
        request.version >= Version::new(1, 5) // before, `mr_mode` was not a set of bits
            && allowed.intersects(needless)
            && !allowed.intersects(MrMode::DEPRECATED)
    });
    let mut fewer = choice.cloned();
    if let Some(hints) = &mut fewer {
        hints.info.domain_attr.mr_mode -= needless;
    }
    found(collect(request, only, &|provider, request| {
        let by_device =
            |hints: &Hints| provider.has_device_keys() && !hints.info.caps.contains(Caps::RMA_EVENT);
        let least = fewer.as_ref().filter(|fewer| !by_device(fewer)).map(|fewer| {
            // Use this request's name: it may be translated.
            let mut hints = fewer.clone();
            if let Some(own) = request.hints {
                hints.info.fabric_attr.prov_name.clone_from(&own.info.fabric_attr.prov_name);
                hints.info.ep_attr.clone_from(&own.info.ep_attr);
            }
            provider.offers(&Request { hints: Some(&hints), ..*request })
        });
        least.filter(|offers| !offers.infos.is_empty()).unwrap_or_else(|| provider.offers(request))
    })?)
}

fn found(offers: ofi_api::Offers) -> Result<Vec<Info>> {
    if offers.infos.is_empty() {
        let error = Error::refused(offers.refusals);
        // Programs probe for providers, so a provider that is not found does not warrant a warning.
        tracing::info!(target: "ofi::core::core", %error, "fi_getinfo found no match");
        return Err(error);
    }
    Ok(offers.infos)
}

/// `fi_fabric`: opens the fabric that an info of getinfo describes.
///
/// # Errors
/// `FI_ENODEV` if the info's provider is not registered.
pub fn open_fabric(info: &Info) -> Result<Arc<dyn Fabric>> {
    let wanted = &info.fabric_attr.prov_name;
    let aliases = Aliases::from_env();
    let all = snapshot();
    let named = |name: &str| all.iter().find(|one| one.name().eq_ignore_ascii_case(name)).cloned();
    let served = |name: &str| aliases.provider_of(name).and_then(named).or_else(|| named(name));
    let found = served(wanted).or_else(|| served(layers::bottom(wanted).ok()??));
    let provider = found.ok_or_else(|| {
        let names: Vec<String> = provider_names().into_iter().map(|(name, _)| name).collect();
        Error::wanted(
            Errno::ENODEV,
            "fi_info.fabric_attr.prov_name",
            format!("one of {}", names.join(", ")),
            format!("{wanted:?}"),
            "use an info that getinfo returned",
        )
    })?;
    provider.open_fabric(info)
}
