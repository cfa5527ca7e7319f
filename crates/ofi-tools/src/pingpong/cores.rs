//! Selects the two cores of the processes.

use std::fs;

use super::sys;
use crate::failure::Failure;

/// Two cores of the same package that are not two threads of one core, if the machine has them. `None` if this process
/// may run only on one core.
///
/// # Errors
/// The system does not report the allowed cores.
pub fn choose() -> Result<Option<[usize; 2]>, Failure> {
    let allowed =
        sys::allowed_cores().map_err(|error| Failure::system("asking for the allowed cores", error))?;
    Ok(pick(&allowed, |cpu| CoreLocation {
        package: topology(cpu, "physical_package_id"),
        core: topology(cpu, "core_id"),
    }))
}

/// Pins this process to `core`.
///
/// # Errors
/// The core is not allowed.
pub fn pin(core: usize) -> Result<(), Failure> {
    sys::pin(core).map_err(|error| Failure::system(format!("running on core {core}"), error))
}

/// The location of a logical core in the machine; `None` if the system does not report it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CoreLocation {
    package: Option<u32>,
    core: Option<u32>,
}

fn topology(cpu: usize, file: &str) -> Option<u32> {
    let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/{file}");
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn pick(allowed: &[usize], place: impl Fn(usize) -> CoreLocation) -> Option<[usize; 2]> {
    let (&first, rest) = allowed.split_first()?;
    let home = place(first);
    let thread_of_first = |place: CoreLocation| place == home && home.core.is_some();
    let near = |&&cpu: &&usize| place(cpu).package == home.package && !thread_of_first(place(cpu));
    let elsewhere = |&&cpu: &&usize| !thread_of_first(place(cpu));
    let second = rest.iter().find(near).or_else(|| rest.iter().find(elsewhere)).or_else(|| rest.first())?;
    Some([first, *second])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(package: u32, core: u32) -> CoreLocation {
        CoreLocation { package: Some(package), core: Some(core) }
    }

    #[test]
    fn two_threads_of_a_core_are_the_last_resort() {
        // Cores 0 and 1 are threads of one core, 2 is in another package, 3 is a neighbour.
        let places = [at(0, 0), at(0, 0), at(1, 0), at(0, 1)];
        assert_eq!(pick(&[0, 1, 2, 3], |cpu| places[cpu]), Some([0, 3]));
        assert_eq!(pick(&[0, 1, 2], |cpu| places[cpu]), Some([0, 2]));
        assert_eq!(pick(&[0, 1], |cpu| places[cpu]), Some([0, 1]));
        assert_eq!(pick(&[0], |cpu| places[cpu]), None);
    }

    #[test]
    fn cores_of_an_unknown_machine_are_taken_in_order() {
        assert_eq!(pick(&[4, 5], |_| CoreLocation { package: None, core: None }), Some([4, 5]));
    }
}
