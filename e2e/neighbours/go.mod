module volcano-elastic/e2e/neighbours

go 1.25.0

require (
	github.com/kubeflow/trainer/v2 v2.2.0
	sigs.k8s.io/jobset v0.11.1
	sigs.k8s.io/kueue v0.17.0
)
