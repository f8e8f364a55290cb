# Toolchain file for `cargo check --target aarch64-unknown-linux-gnu` on another architecture. The build script of the
# bindings builds rdma-core. This file disables libnl, which is missing for the target. `cargo check` links no library.
# `tools/verify` sets CMAKE_TOOLCHAIN_FILE_aarch64_unknown_linux_gnu to this file.
set(ENABLE_RESOLVE_NEIGH FALSE CACHE BOOL "" FORCE)
