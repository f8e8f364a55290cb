/* Prints the clock of the core that it runs on, in GHz: a chain of additions, each of which waits for the one before,
 * takes a cycle for each. The fastest of some tries counts, as others had the core in the rest. */

#include <stdint.h>
#include <stdio.h>
#include <time.h>

#define STEPS 2000000
#define TRIES 10

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

int main(void)
{
	double best = 1e18;
	uint64_t sum = 1;

	for (int try = 0; try < TRIES; try++) {
		double start = now();
		for (int i = 0; i < STEPS / 10; i++) {
			/* What the compiler does not know it cannot shorten. */
#define ADD __asm__ volatile("" : "+r"(sum)); sum += 3;
			ADD ADD ADD ADD ADD ADD ADD ADD ADD ADD
		}
		double took = now() - start;
		if (took < best)
			best = took;
	}
	printf("%.3f\n", STEPS / best);
	return sum == 0;
}
