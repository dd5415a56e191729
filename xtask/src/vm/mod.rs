//! `cargo xtask vm`: a virtual machine with two software RDMA devices, for machines that have no RDMA.
//!
//! | file | contents |
//! |---|---|
//! | `options` | the command line |
//! | `packages` | what is fetched from Debian |
//! | `image`, `cpio` | what a boot needs, made once from the packages |
//! | `machine` | one boot |
//! | `check` | the tests that need it, in `cargo xtask ci` |
//! | `init.sh`, `network.sh` | the guest's side |

pub mod check;
mod cpio;
pub mod image;
pub mod machine;
pub mod options;
mod packages;

use std::path::{Path, PathBuf};

use image::Image;
use machine::Ended;
use options::Options;

/// The exit status of `vm` when the machine broke.
const BROKEN: u8 = 125;
/// The exit status of `vm` when time ran out.
const LATE: u8 = 124;
/// The exit status of `vm` when the machine cannot be run here: nothing was tested, and nothing has failed.
pub const UNAVAILABLE: u8 = 77;

/// Does what the options say, and returns the status.
pub fn run(root: &Path, options: &Options) -> u8 {
    match ready(root) {
        Some(image) if options.prepare => {
            println!("vm: ready in {}", image.root.display());
            0
        }
        Some(image) => boot_from(&image, options),
        None => UNAVAILABLE,
    }
}

/// What boots need. Prints the reason where it cannot be had.
pub fn ready(root: &Path) -> Option<Image> {
    Image::ready(&cache(root)).inspect_err(|why| eprintln!("vm: skipped, there is no virtual machine here: {why}")).ok()
}

/// Boots, runs the command, and returns the status.
fn boot_from(image: &Image, options: &Options) -> u8 {
    match machine::run(image, options) {
        Ok(Ended::WithStatus(status)) => status,
        Ok(Ended::Late) => {
            eprintln!("vm: ended after {} s without a result (--timeout)", options.timeout.as_secs());
            LATE
        }
        Ok(Ended::Broken { status, log }) => {
            eprintln!("vm: the machine ended without a result (qemu: {status}); the end of the kernel's log:\n{log}");
            BROKEN
        }
        Err(why) => {
            eprintln!("vm: {why}");
            BROKEN
        }
    }
}

fn cache(root: &Path) -> PathBuf {
    crate::ci::target_directory(root).join("vm")
}
