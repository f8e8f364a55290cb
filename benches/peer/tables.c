/* Measures DPDK's lookup tables. benches/parts measures Dataplane's tables with the same files, which benches/peer/sets.py writes.
 *
 *     tables EAL-OPTIONS -- lpm-bulk|lpm-x4|fib|fib6|hash|acl FILE
 *
 * serve.h describes the protocol. The rates are lookups per second. The checksum covers the results of all lookups. */

#include <rte_acl.h>
#include <rte_byteorder.h>
#include <rte_eal.h>
#include <rte_errno.h>
#include <rte_fib.h>
#include <rte_fib6.h>
#include <rte_hash.h>
#include <rte_lpm.h>
#include <rte_vect.h>

#include "serve.h"

#define BATCH 32
#define MISS UINT32_MAX
/* Large enough for the files of benches/peer/sets.py. */
#define TBL8 (1 << 16)
#define TBL8_V6 (1 << 20)

struct prefix4 { uint32_t address, len, value; };
struct prefix6 { uint8_t address[16]; uint32_t len, value; };
struct flow { uint32_t words[4]; };
struct rule {
	uint32_t source, destination;
	uint8_t source_len, destination_len, protocol, protocol_mask;
	uint16_t source_ports[2], destination_ports[2];
};
struct packet { uint32_t source, destination; uint16_t source_port, destination_port; uint8_t protocol, zero[3]; };

static const uint8_t *entries, *lookups;
static uint32_t entry_count, lookup_count;
/* Does the lookups of one batch. `at` is the index of the first lookup. If a table stores its results in its own format,
 * `convert_results` converts the results to the format of benches/parts. */
static void (*lookup)(uint32_t at);
static uint32_t values[BATCH];

/* Reads a file: two counts, the entries, the lookups. `entry_size` and `lookup_size` are in bytes. */
static void load(const char *path, size_t entry_size, size_t lookup_size)
{
	FILE *file = fopen(path, "rb");
	uint32_t counts[2];
	if (file == NULL || fread(counts, sizeof(counts), 1, file) != 1)
		fail("cannot read the file");
	entry_count = counts[0];
	lookup_count = counts[1];
	uint8_t *all = malloc(entry_count * entry_size + lookup_count * lookup_size);
	if (all == NULL || fread(all, entry_size, entry_count, file) != entry_count ||
	    fread(all + entry_count * entry_size, lookup_size, lookup_count, file) != lookup_count || lookup_count % BATCH != 0)
		fail("the file is truncated or its lookups do not fill whole batches");
	fclose(file);
	entries = all;
	lookups = all + entry_count * entry_size;
}

static struct rte_lpm *lpm;

static void build_lpm(void)
{
	const struct prefix4 *it = (const void *)entries;
	struct rte_lpm_config config = { .max_rules = entry_count + 1, .number_tbl8s = TBL8 };
	lpm = rte_lpm_create("lpm", SOCKET_ID_ANY, &config);
	if (lpm == NULL)
		fail("rte_lpm_create failed");
	for (uint32_t i = 0; i < entry_count; i++)
		if (rte_lpm_add(lpm, it[i].address, it[i].len, it[i].value) != 0)
			fail("rte_lpm_add failed");
}

static void lpm_bulk(uint32_t at)
{
	uint32_t found[BATCH];
	rte_lpm_lookup_bulk(lpm, (const uint32_t *)lookups + at, found, BATCH);
	for (int i = 0; i < BATCH; i++)
		values[i] = found[i] & RTE_LPM_LOOKUP_SUCCESS ? found[i] & 0xffffff : MISS;
}

static void lpm_x4(uint32_t at)
{
	const uint32_t *addresses = (const uint32_t *)lookups + at;
	for (int i = 0; i < BATCH; i += 4)
		rte_lpm_lookupx4(lpm, _mm_loadu_si128((const __m128i *)(addresses + i)), values + i, MISS);
}

static struct rte_fib *fib;
/* The largest next hop of 2 bytes: rte_fib uses one bit of each entry itself. */
#define FIB_MISS 0x7fff
static uint64_t hops[BATCH];

static void build_fib(void)
{
	const struct prefix4 *it = (const void *)entries;
	struct rte_fib_conf config = {
		.type = RTE_FIB_DIR24_8, .default_nh = FIB_MISS, .max_routes = entry_count + 1,
		.dir24_8 = { .nh_sz = RTE_FIB_DIR24_8_2B, .num_tbl8 = TBL8 / 2 - 1 },
	};
	fib = rte_fib_create("fib", SOCKET_ID_ANY, &config);
	if (fib == NULL)
		fail("rte_fib_create failed");
	for (uint32_t i = 0; i < entry_count; i++)
		if (rte_fib_add(fib, it[i].address, it[i].len, it[i].value) != 0)
			fail("rte_fib_add failed");
}

static void fib_bulk(uint32_t at)
{
	rte_fib_lookup_bulk(fib, (uint32_t *)(uintptr_t)lookups + at, hops, BATCH);
}

static struct rte_fib6 *fib6;

static void build_fib6(void)
{
	const struct prefix6 *it = (const void *)entries;
	struct rte_fib6_conf config = {
		.type = RTE_FIB6_TRIE, .default_nh = FIB_MISS, .max_routes = entry_count + 1,
		.trie = { .nh_sz = RTE_FIB6_TRIE_4B, .num_tbl8 = TBL8_V6 },
	};
	fib6 = rte_fib6_create("fib6", SOCKET_ID_ANY, &config);
	if (fib6 == NULL)
		fail("rte_fib6_create failed");
	for (uint32_t i = 0; i < entry_count; i++)
		if (rte_fib6_add(fib6, it[i].address, it[i].len, it[i].value) != 0)
			fail("rte_fib6_add failed");
}

static void fib6_bulk(uint32_t at)
{
	rte_fib6_lookup_bulk(fib6, (uint8_t (*)[16])(uintptr_t)lookups + at, hops, BATCH);
}

static struct rte_hash *hash;
static uint32_t *numbers;
static int32_t positions[BATCH];

static void build_hash(void)
{
	const struct flow *it = (const void *)entries;
	struct rte_hash_parameters parameters = { .name = "hash", .entries = entry_count, .key_len = sizeof(struct flow) };
	parameters.extra_flag = RTE_HASH_EXTRA_FLAGS_EXT_TABLE;
	hash = rte_hash_create(&parameters);
	numbers = calloc(2 * entry_count + 64, sizeof(*numbers));
	if (hash == NULL || numbers == NULL)
		fail("rte_hash_create failed");
	for (uint32_t i = 0; i < entry_count; i++) {
		int32_t position = rte_hash_add_key(hash, &it[i]);
		if (position < 0 || (uint32_t)position >= 2 * entry_count + 64)
			fail("rte_hash_add_key failed");
		numbers[position] = i;
	}
}

static void hash_bulk(uint32_t at)
{
	const struct flow *flows = (const struct flow *)(const void *)lookups + at;
	const void *keys[BATCH];
	for (int i = 0; i < BATCH; i++)
		keys[i] = &flows[i];
	if (rte_hash_lookup_bulk(hash, keys, BATCH, positions) != 0)
		fail("rte_hash_lookup_bulk failed");
}

static struct rte_acl_ctx *acl;
RTE_ACL_RULE_DEF(acl_rule, 5);

#define FIELD(kind, at, index, name) { .type = RTE_ACL_FIELD_TYPE_##kind, .size = sizeof(((struct packet *)0)->name), \
	.field_index = at, .input_index = index, .offset = offsetof(struct packet, name) }
static const struct rte_acl_field_def fields[5] = {
	FIELD(BITMASK, 0, 0, protocol), FIELD(MASK, 1, 1, source), FIELD(MASK, 2, 2, destination),
	FIELD(RANGE, 3, 3, source_port), FIELD(RANGE, 4, 3, destination_port),
};

static void build_acl(void)
{
	const struct rule *it = (const void *)entries;
	struct rte_acl_param parameters = {
		.name = "acl", .socket_id = SOCKET_ID_ANY, .rule_size = RTE_ACL_RULE_SZ(5), .max_rule_num = entry_count,
	};
	struct rte_acl_config config = { .num_categories = 1, .num_fields = 5 };
	acl = rte_acl_create(&parameters);
	if (acl == NULL)
		fail("rte_acl_create failed");
	for (uint32_t i = 0; i < entry_count; i++) {
		struct acl_rule rule = {
			/* The first matching rule has the highest priority. A result of 0 means no match, so `userdata` starts at 1. */
			.data = { .category_mask = 1, .priority = entry_count - i, .userdata = i + 1 },
			.field = {
				{ .value.u8 = it[i].protocol, .mask_range.u8 = it[i].protocol_mask },
				{ .value.u32 = it[i].source, .mask_range.u32 = it[i].source_len },
				{ .value.u32 = it[i].destination, .mask_range.u32 = it[i].destination_len },
				{ .value.u16 = it[i].source_ports[0], .mask_range.u16 = it[i].source_ports[1] },
				{ .value.u16 = it[i].destination_ports[0], .mask_range.u16 = it[i].destination_ports[1] },
			},
		};
		if (rte_acl_add_rules(acl, (struct rte_acl_rule *)&rule, 1) != 0)
			fail("rte_acl_add_rules failed");
	}
	memcpy(config.defs, fields, sizeof(fields));
	if (rte_acl_build(acl, &config) != 0)
		fail("rte_acl_build failed");
	/* Use AVX-512 if the processor supports it. */
	if (rte_acl_set_ctx_classify(acl, RTE_ACL_CLASSIFY_AVX512X32) != 0)
		rte_acl_set_ctx_classify(acl, RTE_ACL_CLASSIFY_DEFAULT);
	/* The classifier reads the fields in network byte order. */
	struct packet *packets = (void *)(uintptr_t)lookups;
	for (uint32_t i = 0; i < lookup_count; i++) {
		packets[i].source = rte_cpu_to_be_32(packets[i].source);
		packets[i].destination = rte_cpu_to_be_32(packets[i].destination);
		packets[i].source_port = rte_cpu_to_be_16(packets[i].source_port);
		packets[i].destination_port = rte_cpu_to_be_16(packets[i].destination_port);
	}
}

static void acl_bulk(uint32_t at)
{
	const struct packet *packets = (const struct packet *)(const void *)lookups + at;
	const uint8_t *data[BATCH];
	for (int i = 0; i < BATCH; i++)
		data[i] = (const uint8_t *)&packets[i];
	if (rte_acl_classify(acl, data, values, BATCH, 1) != 0)
		fail("rte_acl_classify failed");
}

static const struct structure {
	const char *name;
	size_t entry_size, lookup_size;
	void (*build)(void), (*lookup)(uint32_t);
} structures[] = {
	{ "lpm-bulk", sizeof(struct prefix4), 4, build_lpm, lpm_bulk },
	{ "lpm-x4", sizeof(struct prefix4), 4, build_lpm, lpm_x4 },
	{ "fib", sizeof(struct prefix4), 4, build_fib, fib_bulk },
	{ "fib6", sizeof(struct prefix6), 16, build_fib6, fib6_bulk },
	{ "hash", sizeof(struct flow), sizeof(struct flow), build_hash, hash_bulk },
	{ "acl", sizeof(struct rule), sizeof(struct packet), build_acl, acl_bulk },
};

/* Converts the results of a batch to the format of benches/parts: the value of the entry, or MISS. */
static void convert_results(void)
{
	for (int i = 0; i < BATCH; i++) {
		if (lookup == fib_bulk || lookup == fib6_bulk)
			values[i] = hops[i] == FIB_MISS ? MISS : hops[i];
		else if (lookup == hash_bulk)
			values[i] = positions[i] < 0 ? MISS : numbers[positions[i]];
		else if (lookup == acl_bulk)
			values[i] -= 1;
	}
}

static double measure(double seconds)
{
	uint64_t done = 0;
	uint32_t at = 0;
	double began = now();
	for (;;) {
		for (int i = 0; i < 1024; i++) {
			lookup(at);
			__asm__ volatile("" : : "r"(values), "r"(hops), "r"(positions) : "memory");
			at += BATCH;
			if (at == lookup_count)
				at = 0;
		}
		done += 1024 * BATCH;
		double took = now() - began;
		if (took >= seconds)
			return done / took / 1e6;
	}
}

int main(int count, char **words)
{
	int used = rte_eal_init(count, words);
	if (used < 0)
		fail("rte_eal_init failed");
	count -= used;
	words += used;
	if (count != 3)
		fail("usage: tables EAL-OPTIONS -- lpm-bulk|lpm-x4|fib|fib6|hash|acl FILE");
	const struct structure *structure = NULL;
	for (size_t i = 0; i < RTE_DIM(structures); i++)
		if (strcmp(structures[i].name, words[1]) == 0)
			structure = &structures[i];
	if (structure == NULL)
		fail("unknown table: expected lpm-bulk, lpm-x4, fib, fib6, hash or acl");

	load(words[2], structure->entry_size, structure->lookup_size);
	double began = now();
	structure->build();
	double setup_seconds = now() - began;
	lookup = structure->lookup;
	uint64_t sum = 0xcbf29ce484222325;
	for (uint32_t at = 0; at < lookup_count; at += BATCH) {
		lookup(at);
		convert_results();
		for (int i = 0; i < BATCH; i++)
			sum = (sum ^ values[i]) * 0x100000001b3;
	}
	serve(setup_seconds, sum, measure);
	return 0;
}
