# For `cargo check --target aarch64-unknown-linux-gnu` elsewhere: rdma-core, which is built for the bindings, without the libnl of
# that machine. Nothing of it is linked. `tools/test` names this file in CMAKE_TOOLCHAIN_FILE_aarch64_unknown_linux_gnu.
set(ENABLE_RESOLVE_NEIGH FALSE CACHE BOOL "" FORCE)
