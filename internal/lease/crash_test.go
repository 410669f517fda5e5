package lease
const storyEnv="AFXDP_LEASE_STORY"
func tellStory() int {return 1}
