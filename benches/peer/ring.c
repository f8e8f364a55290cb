/* Hands items of eight bytes from one core to another by DPDK's ring, as benches/parts does by the one that is used here.
 *
 *     ring EAL-OPTIONS, with two cores: 0 takes out what 1 puts in
 *
 * Answers as serve.h says: with items handed over. */

#include <stdbool.h>

#include <rte_eal.h>
#include <rte_launch.h>
#include <rte_pause.h>
#include <rte_ring.h>

#include "serve.h"

#define BURST 32
#define SLOTS 1024
/* Whole bursts. */
#define FIRST_ITEMS (1 << 20)

/* Nothing that one side writes lies beside what the other reads. */
static struct {
	struct rte_ring *ring;
	uint64_t limit;
	bool stop;
} shared __rte_cache_aligned;
static uint64_t sent __rte_cache_aligned;

/* Puts in the numbers from 0 on, burst by burst. */
static int put(void *unused)
{
	uint64_t next = 0, items[BURST];

	(void)unused;
	while (next < shared.limit && !__atomic_load_n(&shared.stop, __ATOMIC_RELAXED)) {
		for (int i = 0; i < BURST; i++)
			items[i] = next + i;
		unsigned int count = rte_ring_sp_enqueue_burst(shared.ring, (void **)items, BURST, NULL);
		if (count == 0)
			rte_pause();
		next += count;
	}
	sent = next;
	return 0;
}

struct taken { uint64_t count, sum; };

/* Takes a burst out: of each item its product with its place is added, so that the order counts. */
static bool take(struct taken *taken)
{
	uint64_t items[BURST], sum = taken->sum;
	unsigned int count = rte_ring_sc_dequeue_burst(shared.ring, (void **)items, BURST, NULL);

	for (unsigned int i = 0; i < count; i++)
		sum += items[i] * (taken->count + i);
	taken->sum = sum;
	taken->count += count;
	return count != 0;
}

/* The sum over so many numbers from 0 on, each in its place: that of their squares. */
static uint64_t squares(uint64_t count)
{
	unsigned __int128 n = count;

	return n == 0 ? 0 : (n - 1) * n * (2 * n - 1) / 6;
}

/* Hands over so many items, or for so long; gives millions a second, and the sum. */
static double hand_over(uint64_t limit, double seconds, uint64_t *sum)
{
	struct taken taken = { 0, 0 };
	double took;

	shared.limit = limit;
	shared.stop = false;
	if (rte_eal_remote_launch(put, NULL, 1) != 0)
		fail("rte_eal_remote_launch");
	while (!take(&taken))
		rte_pause();
	double began = now();
	do {
		for (int i = 0; i < 1024 && taken.count < limit; i++)
			if (!take(&taken))
				rte_pause();
		took = now() - began;
	} while (taken.count < limit && took < seconds);
	double rate = taken.count / took / 1e6;
	__atomic_store_n(&shared.stop, true, __ATOMIC_RELAXED);
	rte_eal_wait_lcore(1);
	while (take(&taken))
		;
	if (taken.count != sent || taken.sum != squares(sent))
		fail("what came out is not what was put in");
	*sum = taken.sum;
	return rate;
}

static double measure(double seconds)
{
	uint64_t sum;

	return hand_over(UINT64_MAX, seconds, &sum);
}

int main(int count, char **words)
{
	uint64_t sum;

	if (rte_eal_init(count, words) < 0)
		fail("rte_eal_init");
	shared.ring = rte_ring_create("ring", SLOTS, SOCKET_ID_ANY, RING_F_SP_ENQ | RING_F_SC_DEQ | RING_F_EXACT_SZ);
	if (shared.ring == NULL)
		fail("rte_ring_create");
	double began = now();
	hand_over(FIRST_ITEMS, 60, &sum);
	serve(now() - began, sum, measure);
	return 0;
}
