/* Prints, for each core that it is told, its clock in GHz and how many additions it does in a cycle, all of them at the
 * same time.
 *
 * A chain of additions, each of which waits for the one before, takes a cycle for each. Additions that wait for nothing take
 * what the core has for them: where it runs two threads, and the other one is at work, that is half of it. The other one is
 * somebody else's, or one of the cores that are looked at. The two are done in turns, as the clock may change; of the turns
 * the lower quartile counts, as a few of them are interrupted, and the other thread need not be at work all the time. */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define TURNS 10
/* Additions of a turn. */
#define CHAIN 200000
#define WIDE 6400000

/* What the compiler does not know it cannot shorten. */
#define ADD(to) to += 3; __asm__ volatile("" : "+r"(to));
#define TEN(what) what what what what what what what what what what

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC_RAW, &t);
	return t.tv_sec * 1e9 + t.tv_nsec;
}

/* How long a chain takes, in nanoseconds. */
static double chain(void)
{
	uint64_t a = 1;
	double start = now();

	for (int i = 0; i < CHAIN / 10; i++) {
		TEN(ADD(a))
	}
	return now() - start;
}

/* How long additions take that wait for nothing. */
static double wide(void)
{
	uint64_t a = 1, b = 1, c = 1, d = 1, e = 1, f = 1, g = 1, h = 1;
	double start = now();

	for (int i = 0; i < WIDE / 80; i++) {
		TEN(ADD(a) ADD(b) ADD(c) ADD(d) ADD(e) ADD(f) ADD(g) ADD(h))
	}
	return now() - start;
}

static int compare(const void *one, const void *other)
{
	double difference = *(const double *)one - *(const double *)other;

	return (difference > 0) - (difference < 0);
}

static pthread_barrier_t all;

struct core {
	pthread_t thread;
	int number;
	double ghz, additions;
};

static void *look(void *given)
{
	struct core *core = given;
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(core->number, &set);
	int failed = pthread_setaffinity_np(pthread_self(), sizeof(set), &set);
	pthread_barrier_wait(&all);
	if (failed)
		return "this process may not use the core";
	double fastest = 1e18;
	double ratios[TURNS];
	for (int turn = 0; turn < TURNS; turn++) {
		double took = chain();
		ratios[turn] = took / wide();
		if (took < fastest)
			fastest = took;
	}
	qsort(ratios, TURNS, sizeof(ratios[0]), compare);
	core->ghz = CHAIN / fastest;
	core->additions = (double)WIDE / CHAIN * ratios[TURNS / 4];
	return NULL;
}

int main(int count, char **words)
{
	struct core cores[count];

	count--;
	pthread_barrier_init(&all, NULL, count);
	for (int i = 0; i < count; i++) {
		cores[i].number = atoi(words[i + 1]);
		if (pthread_create(&cores[i].thread, NULL, look, &cores[i]) != 0) {
			perror("pthread_create");
			return 1;
		}
	}
	for (int i = 0; i < count; i++) {
		void *failed;
		pthread_join(cores[i].thread, &failed);
		if (failed) {
			fprintf(stderr, "%d: %s\n", cores[i].number, (char *)failed);
			return 1;
		}
	}
	for (int i = 0; i < count; i++)
		printf("%.3f %.3f\n", cores[i].ghz, cores[i].additions);
	return 0;
}
