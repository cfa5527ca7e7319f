//! Network namespaces for tests that need two hosts. A test starts under `unshare -Urn`, without privileges, in the
//! near one.

use std::process::{Child, Command, Stdio};

use crate::wait;

/// Runs a script and returns its output.
///
/// # Errors
/// The script, and its output when it failed.
pub fn shell(script: &str) -> Result<String, String> {
    let output = Command::new("sh").args(["-ec", script]).stdin(Stdio::null()).output();
    let output = output.map_err(|error| error.to_string())?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_string());
    }
    Err(format!("{script}: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

/// The far namespace: a process that only keeps it alive. Killed on drop.
#[derive(Debug)]
pub struct Far {
    child: Child,
    pid: String,
}

impl Far {
    /// Creates the namespace, and brings up its loopback device and this one's.
    ///
    /// # Errors
    /// A missing requirement of this host.
    pub fn open() -> Result<Self, String> {
        shell("ip link set lo up")?;
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).stdin(Stdio::null()).spawn();
        let child = child.map_err(|error| format!("unshare: {error}"))?;
        let far = Self { pid: child.id().to_string(), child };
        let pid = far.pid();
        let own = std::fs::read_link("/proc/self/ns/net").map_err(|error| error.to_string())?;
        wait::until("the far namespace", || {
            std::fs::read_link(format!("/proc/{pid}/ns/net")).is_ok_and(|other| other != own)
        });
        far.shell("ip link set lo up")?;
        Ok(far)
    }

    /// The namespace's name for `ip link`.
    pub fn pid(&self) -> &str {
        &self.pid
    }

    /// Runs a script there.
    ///
    /// # Errors
    /// As [`shell`].
    pub fn shell(&self, script: &str) -> Result<String, String> {
        shell(&format!("nsenter -t {} -n sh -ec '{script}'", self.pid()))
    }

    /// The command prefix that runs a command there.
    pub fn under(&self) -> [&str; 4] {
        ["nsenter", "-t", &self.pid, "-n"]
    }
}

impl Drop for Far {
    fn drop(&mut self) {
        // It may be dead already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
