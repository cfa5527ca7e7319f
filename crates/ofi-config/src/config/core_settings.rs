//! The settings without a provider. Their names and meanings are those of `fabric(7)`.

use super::{AnySetting, CORE, Setting};

/// `FI_PROVIDER`: which providers may answer getinfo. See [`super::NameFilter`].
pub static PROVIDER: Setting<&'static str> = Setting::new(
    CORE,
    "provider",
    "",
    "Providers to use, separated by commas; with ^ in front, providers not to use (empty: all)",
);

/// `FI_PROVIDER_ALIAS`: other names for providers.
pub static PROVIDER_ALIAS: Setting<&'static str> = Setting::new(
    CORE,
    "provider_alias",
    "",
    "Other names for providers, for programs that require one: tcp=udp,... (empty: none)",
);

/// `FI_PROVIDER_PATH`: where libfabric.so.1 looks for external providers.
pub static PROVIDER_PATH: Setting<&'static str> = Setting::new(
    CORE,
    "provider_path",
    "",
    "Directories with C plug-ins (lib*-fi.so) for libfabric.so.1, separated by colons; @ in front of a path loads that file (empty: none)",
);

/// `FI_UNIVERSE_SIZE`: how many peers to expect; 0 for unknown.
pub static UNIVERSE_SIZE: Setting<usize> = Setting::new(
    CORE,
    "universe_size",
    0,
    "Number of the application's processes, for sizing tables (0: unknown)",
);

/// `FI_LOG_LEVEL`: what to log. Empty: the default of the program or library, which is warn.
pub static LOG_LEVEL: Setting<&'static str> = Setting::new(
    CORE,
    "log_level",
    "warn",
    "How much to log: warn, trace, info or debug, or 0 to 3; off: nothing",
)
.one_of(&["warn", "trace", "info", "debug", "0", "1", "2", "3", "off"]);

/// `FI_LOG_PROV`: whose messages to log.
pub static LOG_PROV: Setting<&'static str> = Setting::new(
    CORE,
    "log_prov",
    "",
    "Providers to log, separated by commas; with ^ in front, providers not to log (empty: all)",
);

/// `FI_LOG_SUBSYS`: which subsystems' messages to log.
pub static LOG_SUBSYS: Setting<&'static str> = Setting::new(
    CORE,
    "log_subsys",
    "",
    "Subsystems to log (core, fabric, domain, ep_ctrl, ep_data, av, cq, eq, mr, cntr), separated by commas; \
     with ^ in front, subsystems not to log (empty: all)",
);

/// `FI_LOG_LOCATION`: where the log goes.
pub static LOG_LOCATION: Setting<&'static str> = Setting::new(
    CORE,
    "log_location",
    "stderr",
    "Where to log: stderr, stdout, a file that does not exist yet, or a directory to put ofi_<pid>.log into",
);

/// `FI_LOG_LOCATION_MODE`: permissions of the log file.
pub static LOG_LOCATION_MODE: Setting<i64> = Setting::new(
    CORE,
    "log_location_mode",
    0o600,
    "Permissions of the log file; a leading 0 means octal, so the default is 0600",
)
.range(0, 0o777);

/// `FI_HMEM_DISABLE_P2P`: whether NICs keep away from memory of devices.
pub static HMEM_DISABLE_P2P: Setting<bool> = Setting::new(
    CORE,
    "hmem_disable_p2p",
    false,
    "Copy memory of devices through the host's, also where a NIC could access it (FI_HMEM)",
);

/// `FI_MR_CACHE_MONITOR`: what watches memory that the application has not registered.
pub static MR_CACHE_MONITOR: Setting<&'static str> = Setting::new(
    CORE,
    "mr_cache_monitor",
    "userfaultfd",
    "What watches unregistered memory, so that verbs and efa keep its device registrations: userfaultfd or disabled",
)
.one_of(&["userfaultfd", "disabled", "memhooks", "kdreg2"]); // the last two are C's, and refused with the reason

/// `FI_MR_CACHE_MAX_COUNT`: how many registrations of unregistered memory a domain keeps.
pub static MR_CACHE_MAX_COUNT: Setting<usize> = Setting::new(
    CORE,
    "mr_cache_max_count",
    1024,
    "Device registrations of unregistered memory that a domain keeps",
)
.range(0, 1 << 20);

/// `FI_MR_CACHE_MAX_SIZE`: how many bytes those cover.
pub static MR_CACHE_MAX_SIZE: Setting<usize> =
    Setting::new(CORE, "mr_cache_max_size", 16 << 30, "Their total bytes").range(0, isize::MAX as usize);

/// The settings of this file, for [`super::register`].
pub static SETTINGS: &[&dyn AnySetting] = &[
    &PROVIDER,
    &PROVIDER_ALIAS,
    &PROVIDER_PATH,
    &UNIVERSE_SIZE,
    &LOG_LEVEL,
    &LOG_PROV,
    &LOG_SUBSYS,
    &LOG_LOCATION,
    &LOG_LOCATION_MODE,
    &HMEM_DISABLE_P2P,
    &MR_CACHE_MONITOR,
    &MR_CACHE_MAX_COUNT,
    &MR_CACHE_MAX_SIZE,
];
